// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/state_space.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;
using kernels::StateSpaceShape;

namespace {

/// All operands in float64, as one kernel call gets them: x, B and C side by side in one matrix, the raw steps at
/// the end of another.
struct Scan {
  StateSpaceShape shape;
  std::vector<double> mixed, projected, step_bias, decay_log, skip;

  std::int64_t inner() const { return shape.heads * shape.head_dim; }
  std::int64_t groups_state() const { return shape.groups * shape.state; }
  std::int64_t mixed_columns() const { return inner() + 2 * groups_state(); }
  std::int64_t projected_columns() const { return inner() + mixed_columns() + shape.heads; }
  std::int64_t step_column() const { return projected_columns() - shape.heads; }

  template <class T>
  static Scan random(const StateSpaceShape& shape) {
    Scan scan{shape, {}, {}, {}, {}, {}};
    scan.mixed = normal_values<T>(shape.rows() * scan.mixed_columns(), 1);
    scan.projected = normal_values<T>(shape.rows() * scan.projected_columns(), 2, -0.5);
    scan.step_bias = normal_values<T>(shape.heads, 3, -1, 0.5);
    scan.decay_log = normal_values<T>(shape.heads, 4, 0.5, 0.5);
    scan.skip = normal_values<T>(shape.heads, 5, 1, 0.5);
    return scan;
  }

  double x(std::int64_t row, std::int64_t head, std::int64_t p) const {
    return mixed[row * mixed_columns() + head * shape.head_dim + p];
  }
  std::int64_t b_index(std::int64_t row, std::int64_t head, std::int64_t n) const {
    return row * mixed_columns() + inner() + head / (shape.heads / shape.groups) * shape.state + n;
  }
  double b(std::int64_t row, std::int64_t head, std::int64_t n) const { return mixed[b_index(row, head, n)]; }
  double c(std::int64_t row, std::int64_t head, std::int64_t n) const {
    return mixed[b_index(row, head, n) + groups_state()];
  }
  double raw(std::int64_t row, std::int64_t head) const {
    return projected[row * projected_columns() + step_column() + head] + step_bias[head];
  }
  double step(std::int64_t row, std::int64_t head) const {
    const double step = std::max(std::log1p(std::exp(raw(row, head))), shape.step_minimum);
    return shape.step_maximum > 0 ? std::min(step, shape.step_maximum) : step;
  }
  double step_derivative(std::int64_t row, std::int64_t head) const {
    const double step = std::log1p(std::exp(raw(row, head)));
    const bool limited = step < shape.step_minimum || (shape.step_maximum > 0 && step > shape.step_maximum);
    return limited ? 0 : 1 / (1 + std::exp(-raw(row, head)));
  }
};

/// The recurrence as it is defined, token by token, and its gradient by going back through it.
struct Reference {
  std::vector<double> output, mixed_gradient, projected_gradient, step_bias_gradient, decay_log_gradient,
      skip_gradient;

  Reference(const Scan& scan, const std::vector<double>& dy)
      : output(scan.shape.rows() * scan.inner()),
        mixed_gradient(scan.mixed.size()),
        projected_gradient(scan.projected.size()),
        step_bias_gradient(scan.shape.heads),
        decay_log_gradient(scan.shape.heads),
        skip_gradient(scan.shape.heads) {
    for (std::int64_t batch = 0; batch < scan.shape.batch; ++batch)
      for (std::int64_t head = 0; head < scan.shape.heads; ++head) run(scan, dy, batch, head);
  }

 private:
  void run(const Scan& scan, const std::vector<double>& dy, std::int64_t batch, std::int64_t head) {
    const auto& s = scan.shape;
    const double rate = -std::exp(scan.decay_log[head]);
    std::vector<double> states((s.tokens + 1) * s.head_dim * s.state), gradient(s.head_dim * s.state);
    const auto state = [&](std::int64_t t) { return states.data() + t * s.head_dim * s.state; };
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      const std::int64_t row = batch * s.tokens + t;
      const double step = scan.step(row, head), decay = std::exp(rate * step);
      for (std::int64_t p = 0; p < s.head_dim; ++p) {
        double y = scan.skip[head] * scan.x(row, head, p);
        for (std::int64_t n = 0; n < s.state; ++n) {
          const std::int64_t i = p * s.state + n;
          state(t + 1)[i] = decay * state(t)[i] + step * scan.x(row, head, p) * scan.b(row, head, n);
          y += state(t + 1)[i] * scan.c(row, head, n);
        }
        output[row * scan.inner() + head * s.head_dim + p] = y;
      }
    }
    for (std::int64_t t = s.tokens - 1; t >= 0; --t) {
      const std::int64_t row = batch * s.tokens + t;
      const double step = scan.step(row, head), decay = std::exp(rate * step);
      double of_step = 0, of_decay = 0;
      for (std::int64_t p = 0; p < s.head_dim; ++p) {
        const double y = dy[row * scan.inner() + head * s.head_dim + p];
        double of_x = scan.skip[head] * y;
        skip_gradient[head] += y * scan.x(row, head, p);
        for (std::int64_t n = 0; n < s.state; ++n) {
          const std::int64_t i = p * s.state + n, b = scan.b_index(row, head, n);
          gradient[i] += y * scan.c(row, head, n);
          mixed_gradient[b + scan.groups_state()] += y * state(t + 1)[i];
          mixed_gradient[b] += gradient[i] * step * scan.x(row, head, p);
          of_x += gradient[i] * step * scan.b(row, head, n);
          of_step += gradient[i] * scan.x(row, head, p) * scan.b(row, head, n);
          of_decay += gradient[i] * state(t)[i];
          gradient[i] *= decay;
        }
        mixed_gradient[row * scan.mixed_columns() + head * s.head_dim + p] = of_x;
      }
      of_step += of_decay * decay * rate;
      decay_log_gradient[head] += of_decay * decay * rate * step;
      const double of_raw = of_step * scan.step_derivative(row, head);
      projected_gradient[row * scan.projected_columns() + scan.step_column() + head] = of_raw;
      step_bias_gradient[head] += of_raw;
    }
  }
};

/// A scan's arrays in a space.
template <class Space, class T, class G>
struct Call {
  using A = backend::Accumulator<T>;

  Call(KernelRun<Space>& run_, const Scan& scan, const std::vector<double>& dy)
      : run(run_),
        shape(scan.shape),
        inner(scan.inner()),
        groups_state(scan.groups_state()),
        mixed(run.template input<T>(scan.mixed, scan.mixed_columns())),
        projected(run.template input<T>(scan.projected, scan.projected_columns())),
        output_gradient(run.template input<T>(dy, scan.inner())),
        step_bias(run.template input<T>(scan.step_bias)),
        decay_log(run.template input<T>(scan.decay_log)),
        skip(run.template input<T>(scan.skip)),
        output(run.template output<T>(shape.rows(), inner)),
        mixed_gradient(run.template output<T>(shape.rows(), scan.mixed_columns())),
        projected_gradient(run.template in_out<T>(std::vector<double>(scan.projected.size(), 0.0),
                                                  scan.projected_columns())),
        step_bias_gradient(run.template output<G>(shape.heads)),
        decay_log_gradient(run.template output<G>(shape.heads)),
        skip_gradient(run.template output<G>(shape.heads)),
        forward_workspace(run.template workspace<A>(1, kernels::state_space_forward_workspace(shape))),
        backward_workspace(run.template workspace<A>(1, kernels::state_space_backward_workspace(shape))),
        saved{
            run.template output<A>(shape.heads, shape.rows()),
            run.template output<A>(shape.heads, shape.rows()),
            run.template output<A>(shape.batch * shape.chunks() * shape.heads, shape.head_dim * shape.state)},
        step_column(scan.step_column()) {}

  kernels::StateSpaceInputs<Space, T> inputs() const {
    return {kernels::columns_of<const T, Space>(mixed, 0, inner),
            kernels::columns_of<const T, Space>(mixed, inner, groups_state),
            kernels::columns_of<const T, Space>(mixed, inner + groups_state, groups_state),
            kernels::columns_of<const T, Space>(projected, step_column, shape.heads),
            step_bias,
            decay_log,
            skip};
  }
  void forward() {
    kernels::state_space_forward<Space, T>(
        run.stream(), shape, inputs(), kernels::columns_of<T, Space>(output), saved,
        backend::Vector<A, Space>(forward_workspace.data(), forward_workspace.size()));
  }
  void backward(bool accumulate = false) {
    const kernels::StateSpaceGradients<Space, T, G> gradients{
        kernels::columns_of<T, Space>(mixed_gradient, 0, inner),
        kernels::columns_of<T, Space>(mixed_gradient, inner, groups_state),
        kernels::columns_of<T, Space>(mixed_gradient, inner + groups_state, groups_state),
        kernels::columns_of<T, Space>(projected_gradient, step_column, shape.heads),
        step_bias_gradient,
        decay_log_gradient,
        skip_gradient,
        accumulate};
    kernels::state_space_backward<Space, T, G>(
        run.stream(), shape, inputs(), kernels::columns_of<const T, Space>(output_gradient), saved, gradients,
        backend::Vector<A, Space>(backward_workspace.data(), backward_workspace.size()));
  }

  KernelRun<Space>& run;
  StateSpaceShape shape;
  std::int64_t inner, groups_state;
  backend::Matrix<const T, Space> mixed, projected, output_gradient;
  backend::Vector<const T, Space> step_bias, decay_log, skip;
  backend::Matrix<T, Space> output, mixed_gradient, projected_gradient;
  backend::Vector<G, Space> step_bias_gradient, decay_log_gradient, skip_gradient;
  backend::Matrix<A, Space> forward_workspace, backward_workspace;
  kernels::StateSpaceSaved<Space, A> saved;
  std::int64_t step_column;
};

/// batch, tokens, heads, head_dim, state, groups, chunk, bounds of the step: one token; whole chunks; chunks
/// that no length divides; more than a tile of 64 in each direction; what Mamba-2 models have, which matrix units
/// compute.
const std::vector<StateSpaceShape> shapes{
    {1, 1, 1, 1, 1, 1, 4, 0, 0},        {2, 8, 2, 4, 3, 1, 4, 0, 0},        {2, 13, 4, 5, 6, 2, 4, 0, 0},
    {3, 7, 3, 8, 4, 3, 16, 0.2, 0.9},   {1, 150, 2, 70, 66, 1, 100, 0, 0},  {2, 100, 18, 8, 16, 2, 32, 0, 1},
    {1, 200, 4, 64, 128, 2, 128, 0, 0}, {2, 300, 2, 64, 128, 1, 256, 0, 0}, {1, 40, 2, 64, 128, 1, 64, 0, 0}};

/// More room than one value has for what goes through several roundings, and the more for sums over all tokens that
/// cancel.
template <class T>
Tolerance room(double times = 4) {
  const Tolerance one = tolerance<T>();
  return {times * one.norm, times * one.largest};
}

template <class Space, class T, class G>
void check(HostAgreement& agreement, const StateSpaceShape& shape) {
  const std::string name = std::to_string(shape.tokens) + " tokens, " + std::to_string(shape.heads) +
                           " heads, chunk " + std::to_string(shape.chunk) + " " +
                           std::string(backend::name_of(backend::data_type_of<T>)) + " " +
                           std::string(backend::name_of(backend::data_type_of<G>));
  INFO(name);
  const Scan scan = Scan::random<T>(shape);
  const auto dy = normal_values<T>(shape.rows() * scan.inner(), 6);
  const Reference reference(scan, dy);
  KernelRun<Space> run;
  Call<Space, T, G> call(run, scan, dy);
  agreement.add<Space>(name, run.execute([&] {
    call.forward();
    call.backward();
  }));
  check_close(run.values(call.output), reference.output, room<T>());
  check_close(run.values(call.mixed_gradient), reference.mixed_gradient, room<T>());
  check_close(run.values(call.projected_gradient), reference.projected_gradient, room<T>());
  // Matrix units round what they multiply.
  const Tolerance sums = backend::is_host_space<Space> ? room<G>(16)
                         : std::is_same_v<T, G>        ? room<G>(16)
                                                       : room<T>();
  check_close(run.values(call.step_bias_gradient), reference.step_bias_gradient, sums);
  check_close(run.values(call.decay_log_gradient), reference.decay_log_gradient, sums);
  check_close(run.values(call.skip_gradient), reference.skip_gradient, room<G>());
}

}  // namespace

TEST_CASE("a chunked scan and its gradients agree with the recurrence token by token") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const StateSpaceShape& shape : shapes) check<Space, T, G>(agreement, shape);
  });
}

TEST_CASE("the chunk's size changes a scan by rounding only") {
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    StateSpaceShape shape{2, 70, 2, 8, 12, 1, 1, 0, 0};
    const Scan scan = Scan::random<T>(shape);
    const auto dy = normal_values<T>(shape.rows() * scan.inner(), 6);
    std::vector<double> output, gradient;
    for (const std::int64_t chunk : {1, 7, 16, 64, 70, 256}) {
      CAPTURE(chunk);
      Scan same = scan;
      same.shape.chunk = chunk;
      KernelRun<Space> run;
      Call<Space, T, T> call(run, same, dy);
      run.execute([&] {
        call.forward();
        call.backward();
      });
      if (output.empty()) {
        output = run.values(call.output);
        gradient = run.values(call.mixed_gradient);
      }
      check_close(run.values(call.output), output, room<T>());
      check_close(run.values(call.mixed_gradient), gradient, room<T>());
    }
  });
}

TEST_CASE("sequences of a batch do not mix in a scan") {
  for_each_space([&]<class Space>(Types<Space>) {
    const StateSpaceShape shape{3, 21, 2, 4, 5, 1, 8, 0, 0};
    Scan scan = Scan::random<float>(shape);
    const auto dy = normal_values<float>(shape.rows() * scan.inner(), 6);
    const auto middle = [&](const Scan& of) {
      KernelRun<Space> run;
      Call<Space, float, float> call(run, of, dy);
      run.execute([&] {
        call.forward();
        call.backward();
      });
      auto output = run.values(call.output), gradient = run.values(call.mixed_gradient);
      output = {output.begin() + 21 * of.inner(), output.begin() + 42 * of.inner()};
      output.insert(output.end(), gradient.begin() + 21 * of.mixed_columns(),
                    gradient.begin() + 42 * of.mixed_columns());
      return output;
    };
    const auto before = middle(scan);
    for (std::size_t i = 0; i < scan.mixed.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / scan.mixed_columns();
      if (row < 21 || row >= 42) scan.mixed[i] = std::nan("");
    }
    CHECK(middle(scan) == before);
  });
}

TEST_CASE("decays that leave nothing of a state give finite gradients") {
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    const StateSpaceShape shape{1, 96, 2, 4, 4, 1, 32, 0, 0};
    Scan scan = Scan::random<T>(shape);
    for (double& value : scan.decay_log) value = 4;
    for (double& value : scan.step_bias) value = 8;
    const auto dy = normal_values<T>(shape.rows() * scan.inner(), 6);
    const Reference reference(scan, dy);
    KernelRun<Space> run;
    Call<Space, T, T> call(run, scan, dy);
    run.execute([&] {
      call.forward();
      call.backward();
    });
    check_close(run.values(call.output), reference.output, room<T>());
    check_close(run.values(call.mixed_gradient), reference.mixed_gradient, room<T>());
    for (const double value : run.values(call.projected_gradient)) CHECK(std::isfinite(value));
    for (const double value : run.values(call.decay_log_gradient)) CHECK(std::isfinite(value));
  });
}

TEST_CASE("a scan adds to parameter gradients when told to") {
  for_each_space([&]<class Space>(Types<Space>) {
    const StateSpaceShape shape{1, 12, 3, 4, 5, 1, 8, 0, 0};
    const Scan scan = Scan::random<float>(shape);
    const auto dy = normal_values<float>(shape.rows() * scan.inner(), 6);
    const Reference reference(scan, dy);
    KernelRun<Space> run;
    Call<Space, float, float> call(run, scan, dy);
    run.execute([&] {
      call.forward();
      call.backward(false);
      call.backward(true);
    });
    for (const auto& [result, expected] :
         {std::pair{run.values(call.step_bias_gradient), reference.step_bias_gradient},
          std::pair{run.values(call.decay_log_gradient), reference.decay_log_gradient},
          std::pair{run.values(call.skip_gradient), reference.skip_gradient}}) {
      std::vector<double> twice = expected;
      for (double& value : twice) value *= 2;
      check_close(result, twice, room<float>());
    }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("gradients of a scan in double agree with finite differences") {
  using Space = backend::Serial;
  const StateSpaceShape shape{2, 9, 4, 3, 2, 2, 4, 0, 0};
  const Scan scan = Scan::random<double>(shape);
  const auto dy = normal_values<double>(shape.rows() * scan.inner(), 6);
  std::vector<double> point = scan.mixed;
  const auto parts = {&scan.projected, &scan.step_bias, &scan.decay_log, &scan.skip};
  for (const auto* part : parts) point.insert(point.end(), part->begin(), part->end());
  const auto at = [&](const std::vector<double>& values) {
    Scan moved = scan;
    auto from = values.begin();
    for (auto* part : {&moved.mixed, &moved.projected, &moved.step_bias, &moved.decay_log, &moved.skip}) {
      std::copy(from, from + static_cast<std::int64_t>(part->size()), part->begin());
      from += static_cast<std::int64_t>(part->size());
    }
    return moved;
  };
  KernelRun<Space> run;
  Call<Space, double, double> call(run, scan, dy);
  run.execute([&] {
    call.forward();
    call.backward();
  });
  std::vector<double> gradient = run.values(call.mixed_gradient);
  for (const auto& part : {run.values(call.projected_gradient), run.values(call.step_bias_gradient),
                           run.values(call.decay_log_gradient), run.values(call.skip_gradient)})
    gradient.insert(gradient.end(), part.begin(), part.end());
  check_gradient(
      [&](const std::vector<double>& values) {
        KernelRun<Space> moved_run;
        Call<Space, double, double> moved(moved_run, at(values), dy);
        moved_run.execute([&] { moved.forward(); });
        return weighted_sum(moved_run.values(moved.output), dy);
      },
      point, gradient);
}
#endif

TEST_CASE("a scan refuses operands that do not fit") {
  for_each_space([]<class Space>(Types<Space>) {
    const StateSpaceShape shape{1, 4, 2, 3, 2, 1, 4, 0, 0};
    const Scan scan = Scan::random<float>(shape);
    KernelRun<Space> run;
    Call<Space, float, float> call(run, scan, std::vector<double>(shape.rows() * scan.inner(), 0.0));
    call.shape.heads = 3;
    CHECK_THROWS_AS(call.forward(), ConfigurationError);
    CHECK_THROWS_AS(call.backward(), ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
