// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/gated_normalization.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

constexpr double epsilon = 1e-5;

struct Shape {
  std::int64_t rows, columns, groups;
};
const std::vector<Shape> shapes{{1, 1, 1},    {3, 6, 3},    {37, 64, 2},  {70, 96, 1},
                                {9, 2048, 2}, {5, 4096, 1}, {2, 8208, 1}, {2, 20480, 1}};

/// The gate stands in a wider matrix, behind this many other columns.
constexpr std::int64_t gate_begin = 8;

struct Reference {
  std::vector<double> output, inverse, input_gradient, gate_gradient, weight_gradient;

  Reference(Shape shape, const std::vector<double>& x, const std::vector<double>& wide_gate,
            const std::vector<double>& weight, const std::vector<double>& dy)
      : output(x.size()),
        inverse(shape.rows * shape.groups),
        input_gradient(x.size()),
        gate_gradient(wide_gate.size()),
        weight_gradient(shape.columns) {
    const std::int64_t length = shape.columns / shape.groups;
    for (std::int64_t row = 0; row < shape.rows; ++row)
      for (std::int64_t group = 0; group < shape.groups; ++group) {
        std::vector<double> v(length), silu(length), slope(length);
        double squares = 0, projection = 0;
        const auto at = [&](std::int64_t i) { return row * shape.columns + group * length + i; };
        const auto gate_at = [&](std::int64_t i) {
          return row * (shape.columns + gate_begin) + gate_begin + group * length + i;
        };
        for (std::int64_t i = 0; i < length; ++i) {
          const double z = wide_gate[gate_at(i)], s = 1 / (1 + std::exp(-z));
          silu[i] = z * s;
          slope[i] = s * (1 + z * (1 - s));
          v[i] = x[at(i)] * silu[i];
          squares += v[i] * v[i];
        }
        const double r = 1 / std::sqrt(squares / length + epsilon);
        inverse[row * shape.groups + group] = r;
        for (std::int64_t i = 0; i < length; ++i) {
          const double w = weight[group * length + i];
          output[at(i)] = v[i] * r * w;
          weight_gradient[group * length + i] += dy[at(i)] * v[i] * r;
          projection += dy[at(i)] * w * v[i] * r / length;
        }
        for (std::int64_t i = 0; i < length; ++i) {
          const double e = r * (dy[at(i)] * weight[group * length + i] - v[i] * r * projection);
          input_gradient[at(i)] = e * silu[i];
          gate_gradient[gate_at(i)] = e * x[at(i)] * slope[i];
        }
      }
  }
};

/// in_place: the gradients take the places of output_gradient and gate, and are added to the weight's.
template <class Space, class T, class G>
void check(HostAgreement& agreement, Shape shape, bool in_place) {
  using A = backend::Accumulator<T>;
  const auto [rows, columns, groups] = shape;
  const std::string name = std::to_string(rows) + "x" + std::to_string(columns) + "/" +
                           std::to_string(groups) + (in_place ? " in place " : " ") +
                           std::string(backend::name_of(backend::data_type_of<T>)) + " " +
                           std::string(backend::name_of(backend::data_type_of<G>));
  INFO(name);
  const auto x = normal_values<T>(rows * columns, 1), dy = normal_values<T>(rows * columns, 2);
  const auto z = normal_values<T>(rows * (columns + gate_begin), 3);
  const auto w = normal_values<T>(columns, 4, 1, 0.5), before = normal_values<G>(columns, 5);
  Reference reference(shape, x, z, w, dy);
  KernelRun<Space> run;
  const auto input = run.template input<T>(x, columns);
  const auto weight = run.template input<T>(w);
  const auto output = run.template output<T>(rows, columns);
  const auto inverse = run.template output<A>(rows, groups);
  const auto wide = run.template in_out<T>(z, columns + gate_begin);
  const auto gradient = run.template in_out<T>(dy, columns);
  const auto input_gradient = in_place ? gradient : run.template output<T>(rows, columns);
  const auto wide_gradient =
      in_place ? wide : run.template in_out<T>(std::vector<double>(z.size(), 0.0), columns + gate_begin);
  const auto weight_gradient = in_place ? run.template in_out<G>(before) : run.template output<G>(columns);
  const auto workspace = run.template workspace<A>(kernels::gated_rms_norm_workspace_rows(rows), columns);
  const auto of = [&](const auto& matrix) {
    return kernels::Columns<const T>(
        kernels::columns_of<typename std::decay_t<decltype(matrix)>::value_type, Space>(matrix));
  };
  const auto gate = kernels::columns_of<T, Space>(wide, gate_begin, columns);
  agreement.add<Space>(name, run.execute([&] {
    kernels::gated_rms_norm_forward<Space, T>(run.stream(), of(input), gate, weight,
                                              kernels::columns_of<T, Space>(output), inverse, epsilon);
    kernels::gated_rms_norm_backward<Space, T, G>(
        run.stream(), of(input), gate, weight, inverse, of(gradient),
        kernels::columns_of<T, Space>(input_gradient),
        kernels::columns_of<T, Space>(wide_gradient, gate_begin, columns), weight_gradient, workspace,
        in_place);
  }));
  if (in_place) {
    for (std::int64_t i = 0; i < columns; ++i) reference.weight_gradient[i] += before[i];
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < gate_begin; ++i)
        reference.gate_gradient[row * (columns + gate_begin) + i] = z[row * (columns + gate_begin) + i];
  }
  check_close(run.values(output), reference.output, tolerance<T>());
  check_close(run.values(inverse), reference.inverse, tolerance<A>());
  if (columns / groups >
      1) {  // One element is constant after normalization: its gradient is a difference of equals.
    check_close(run.values(input_gradient), reference.input_gradient, tolerance<T>());
    check_close(run.values(wide_gradient), reference.gate_gradient, tolerance<T>());
  }
  check_close(run.values(weight_gradient), reference.weight_gradient, tolerance<G>());
}

}  // namespace

TEST_CASE("gated RMS norm over groups and its gradients agree with the definition") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const Shape& shape : shapes)
      for (const bool in_place : {false, true}) check<Space, T, G>(agreement, shape, in_place);
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("gated RMS norm gradients in double agree with finite differences") {
  using Space = backend::Serial;
  const std::int64_t rows = 5, columns = 6, groups = 2;
  const auto c = normal_values<double>(rows * columns, 3);
  std::vector<double> point = normal_values<double>(rows * columns, 1);
  for (const auto& more :
       {normal_values<double>(rows * columns, 2), normal_values<double>(columns, 4, 1, 0.3)})
    point.insert(point.end(), more.begin(), more.end());
  const auto evaluate = [&](const std::vector<double>& at, bool with_gradient) {
    const auto gate_begins = at.begin() + rows * columns, weight_begins = gate_begins + rows * columns;
    KernelRun<Space> run;
    const auto input = run.input<double>(std::vector<double>(at.begin(), gate_begins), columns);
    const auto gate = run.input<double>(std::vector<double>(gate_begins, weight_begins), columns);
    const auto weight = run.input<double>(std::vector<double>(weight_begins, at.end()));
    const auto gradient = run.input<double>(c, columns);
    const auto output = run.output<double>(rows, columns), dx = run.output<double>(rows, columns),
               dz = run.output<double>(rows, columns), inverse = run.output<double>(rows, groups);
    const auto dw = run.output<double>(columns);
    const auto workspace = run.workspace<double>(kernels::gated_rms_norm_workspace_rows(rows), columns);
    const auto in = [](const auto& matrix) { return kernels::columns_of<const double, Space>(matrix); };
    const auto out = [](const auto& matrix) { return kernels::columns_of<double, Space>(matrix); };
    run.execute([&] {
      kernels::gated_rms_norm_forward<Space, double>(run.stream(), in(input), in(gate), weight, out(output),
                                                     inverse, epsilon);
      kernels::gated_rms_norm_backward<Space, double, double>(run.stream(), in(input), in(gate), weight,
                                                              inverse, in(gradient), out(dx), out(dz), dw,
                                                              workspace, false);
    });
    if (!with_gradient) return std::vector<double>{weighted_sum(run.values(output), c)};
    std::vector<double> all = run.values(dx);
    for (const auto& more : {run.values(dz), run.values(dw)}) all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  check_gradient([&](const std::vector<double>& at) { return evaluate(at, false).front(); }, point,
                 evaluate(point, true));
}
#endif

TEST_CASE("gated RMS norm refuses operands that do not fit") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto values = run.template output<float>(4, 6), inverse = run.template output<float>(4, 4);
    const auto weight = run.template output<float>(6);
    const auto columns = kernels::columns_of<float, Space>(values);
    CHECK_THROWS_AS((kernels::gated_rms_norm_forward<Space, float>(run.stream(), columns, columns, weight,
                                                                   columns, inverse, epsilon)),
                    ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
