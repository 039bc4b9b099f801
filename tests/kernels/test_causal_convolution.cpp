// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/causal_convolution.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

struct Shape {
  std::int64_t sequences, tokens, channels, width;
};
/// One token; every width; fewer tokens than the width; several runs and shares of tokens; channels that are no
/// whole packets and more than a team takes.
const std::vector<Shape> shapes{{1, 1, 1, 4},    {2, 5, 8, 2},    {1, 3, 16, 8},
                                {3, 17, 20, 3},  {2, 130, 33, 4}, {1, 300, 136, 4},
                                {2, 33, 264, 5}, {2, 20, 48, 6},  {1, 19, 40, 7}};

/// Columns before and behind those that the convolution reads.
constexpr std::int64_t before = 8, behind = 4;

struct Reference {
  std::vector<double> output, input_gradient, weight_gradient, bias_gradient;

  Reference(Shape s, const std::vector<double>& wide, const std::vector<double>& weight,
            const std::vector<double>& bias, const std::vector<double>& dy)
      : output(s.sequences * s.tokens * s.channels),
        input_gradient(wide.size()),
        weight_gradient(weight.size()),
        bias_gradient(bias.size()) {
    const std::int64_t stride = before + s.channels + behind;
    for (std::int64_t row = 0; row < s.sequences * s.tokens; ++row)
      for (std::int64_t c = 0; c < s.channels; ++c) {
        const auto first = std::max<std::int64_t>(0, s.width - 1 - row % s.tokens);
        const auto at = [&](std::int64_t k) { return (row - s.width + 1 + k) * stride + before + c; };
        double sum = bias[c];
        for (std::int64_t k = first; k < s.width; ++k) sum += weight[c * s.width + k] * wide[at(k)];
        const double gate = 1 / (1 + std::exp(-sum));
        output[row * s.channels + c] = sum * gate;
        const double d = dy[row * s.channels + c] * gate * (1 + sum * (1 - gate));
        bias_gradient[c] += d;
        for (std::int64_t k = first; k < s.width; ++k) {
          weight_gradient[c * s.width + k] += d * wide[at(k)];
          input_gradient[at(k)] += d * weight[c * s.width + k];
        }
      }
  }
};

template <class Space, class T, class G>
void check(HostAgreement& agreement, Shape shape, bool has_bias, bool accumulate) {
  using A = backend::Accumulator<T>;
  const auto [sequences, tokens, channels, width] = shape;
  const std::int64_t rows = sequences * tokens, columns = before + channels + behind;
  const std::string name = std::to_string(rows) + "x" + std::to_string(channels) + "/" +
                           std::to_string(width) + (has_bias ? " bias " : " ") +
                           (accumulate ? "accumulate " : "") +
                           std::string(backend::name_of(backend::data_type_of<T>)) + " " +
                           std::string(backend::name_of(backend::data_type_of<G>));
  INFO(name);
  const auto x = normal_values<T>(rows * columns, 1), dy = normal_values<T>(rows * channels, 2);
  const auto w = normal_values<T>(channels * width, 3);
  const auto b = has_bias ? normal_values<T>(channels, 4) : std::vector<double>(channels, 0.0);
  const auto w_before = normal_values<G>(channels * width, 5), b_before = normal_values<G>(channels, 6);
  Reference reference(shape, x, w, b, dy);
  KernelRun<Space> run;
  const auto input = run.template input<T>(x, columns);
  const auto weight = run.template input<T>(w, width);
  const auto bias = has_bias ? run.template input<T>(b) : backend::Vector<const T, Space>();
  const auto output_gradient = run.template input<T>(dy, channels);
  const auto output = run.template output<T>(rows, channels);
  const auto input_gradient = run.template in_out<T>(std::vector<double>(x.size(), 0.0), columns);
  const auto weight_gradient =
      accumulate ? run.template in_out<G>(w_before, width) : run.template output<G>(channels, width);
  const auto bias_gradient = !has_bias    ? backend::Vector<G, Space>()
                             : accumulate ? run.template in_out<G>(b_before)
                                          : run.template output<G>(channels);
  const auto workspace = run.template workspace<A>(
      kernels::causal_convolution_workspace_rows(sequences, tokens), channels * (width + 1));
  const auto input_columns = kernels::columns_of<const T, Space>(input, before, channels);
  agreement.add<Space>(name, run.execute([&] {
    kernels::causal_convolution_forward<Space, T>(run.stream(), sequences, input_columns, weight, bias,
                                                  kernels::columns_of<T, Space>(output));
    kernels::causal_convolution_backward<Space, T, G>(
        run.stream(), sequences, input_columns, weight, bias,
        kernels::columns_of<const T, Space>(output_gradient),
        kernels::columns_of<T, Space>(input_gradient, before, channels), weight_gradient, bias_gradient,
        workspace, accumulate);
  }));
  if (accumulate) {
    for (std::size_t i = 0; i < w_before.size(); ++i) reference.weight_gradient[i] += w_before[i];
    for (std::size_t i = 0; i < b_before.size(); ++i) reference.bias_gradient[i] += b_before[i];
  }
  check_close(run.values(output), reference.output, tolerance<T>());
  check_close(run.values(input_gradient), reference.input_gradient, tolerance<T>());
  check_close(run.values(weight_gradient), reference.weight_gradient, tolerance<G>());
  if (has_bias) check_close(run.values(bias_gradient), reference.bias_gradient, tolerance<G>());
}

}  // namespace

TEST_CASE("a causal convolution with SiLU and its gradients agree with the definition") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const Shape& shape : shapes) {
      check<Space, T, G>(agreement, shape, true, false);
      check<Space, T, G>(agreement, shape, false, false);
      check<Space, T, G>(agreement, shape, true, true);
    }
  });
}

TEST_CASE("sequences of a batch do not mix in a causal convolution") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t tokens = 37, channels = 24, width = 4;
    auto x = normal_values<float>(3 * tokens * channels, 1);
    auto dy = normal_values<float>(3 * tokens * channels, 2);
    const auto w = normal_values<float>(channels * width, 3);
    const auto middle = [&] {
      KernelRun<Space> run;
      const auto input = run.template input<float>(x, channels),
                 gradient = run.template input<float>(dy, channels);
      const auto weight = run.template input<float>(w, width);
      const auto output = run.template output<float>(3 * tokens, channels),
                 input_gradient = run.template output<float>(3 * tokens, channels);
      const auto weight_gradient = run.template output<float>(channels, width);
      const auto workspace = run.template workspace<float>(
          kernels::causal_convolution_workspace_rows(3, tokens), channels * (width + 1));
      const auto in = [](const auto& matrix) { return kernels::columns_of<const float, Space>(matrix); };
      run.execute([&] {
        kernels::causal_convolution_forward<Space, float>(run.stream(), 3, in(input), weight, {},
                                                          kernels::columns_of<float, Space>(output));
        kernels::causal_convolution_backward<Space, float, float>(
            run.stream(), 3, in(input), weight, {}, in(gradient),
            kernels::columns_of<float, Space>(input_gradient), weight_gradient, {}, workspace, false);
      });
      std::vector<double> all;
      for (const auto& values : {run.values(output), run.values(input_gradient)})
        all.insert(all.end(), values.begin() + tokens * channels, values.begin() + 2 * tokens * channels);
      return all;
    };
    const auto clean = middle();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / channels;
      if (row < tokens || row >= 2 * tokens) x[i] = dy[i] = std::nan("");
    }
    CHECK(middle() == clean);
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("causal convolution gradients in double agree with finite differences") {
  using Space = backend::Serial;
  const std::int64_t rows = 12, channels = 3, width = 4;
  const auto c = normal_values<double>(rows * channels, 3);
  std::vector<double> point = normal_values<double>(rows * channels, 1);
  for (const auto& more : {normal_values<double>(channels * width, 2), normal_values<double>(channels, 4)})
    point.insert(point.end(), more.begin(), more.end());
  const auto evaluate = [&](const std::vector<double>& at, bool with_gradient) {
    const auto weight_begins = at.begin() + rows * channels, bias_begins = weight_begins + channels * width;
    KernelRun<Space> run;
    const auto input = run.input<double>(std::vector<double>(at.begin(), weight_begins), channels);
    const auto weight = run.input<double>(std::vector<double>(weight_begins, bias_begins), width);
    const auto bias = run.input<double>(std::vector<double>(bias_begins, at.end()));
    const auto gradient = run.input<double>(c, channels);
    const auto output = run.output<double>(rows, channels), dx = run.output<double>(rows, channels),
               dw = run.output<double>(channels, width);
    const auto db = run.output<double>(channels);
    const auto workspace = run.workspace<double>(kernels::causal_convolution_workspace_rows(2, rows / 2),
                                                 channels * (width + 1));
    const auto in = [](const auto& matrix) { return kernels::columns_of<const double, Space>(matrix); };
    const auto out = [](const auto& matrix) { return kernels::columns_of<double, Space>(matrix); };
    run.execute([&] {
      kernels::causal_convolution_forward<Space, double>(run.stream(), 2, in(input), weight, bias,
                                                         out(output));
      kernels::causal_convolution_backward<Space, double, double>(
          run.stream(), 2, in(input), weight, bias, in(gradient), out(dx), dw, db, workspace, false);
    });
    if (!with_gradient) return std::vector<double>{weighted_sum(run.values(output), c)};
    std::vector<double> all = run.values(dx);
    for (const auto& more : {run.values(dw), run.values(db)}) all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  check_gradient([&](const std::vector<double>& at) { return evaluate(at, false).front(); }, point,
                 evaluate(point, true));
}
#endif

TEST_CASE("a causal convolution refuses operands that do not fit") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto values = run.template output<float>(4, 6), narrow = run.template output<float>(5, 4),
               wide = run.template output<float>(6, 9);
    const auto columns = kernels::columns_of<float, Space>(values);
    for (const auto& weight : {narrow, wide})
      CHECK_THROWS_AS(
          (kernels::causal_convolution_forward<Space, float>(run.stream(), 2, columns, weight, {}, columns)),
          ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
