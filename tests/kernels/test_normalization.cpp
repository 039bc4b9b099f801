// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/normalization.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

constexpr double epsilon = 1e-5;

struct Shape {
  std::int64_t tokens, hidden;
};
/// One row, rows without whole packets, and rows for each size of team that a GPU uses.
constexpr Shape shapes[] = {{1, 1},    {1, 8},    {3, 7},    {37, 64},  {19, 100}, {70, 768},
                            {5, 1032}, {9, 2056}, {3, 4096}, {2, 8200}, {2, 16392}};

/// The definitions, in float64. With `centered` layer norm, else RMS norm.
struct Reference {
  std::vector<double> output, mean, inverse, input_gradient, weight_gradient, bias_gradient;

  Reference(bool centered, Shape shape, const std::vector<double>& x, const std::vector<double>& weight,
            const std::vector<double>& bias, const std::vector<double>& dy,
            const std::vector<double>& residual)
      : output(x.size()),
        mean(shape.tokens),
        inverse(shape.tokens),
        input_gradient(x.size()),
        weight_gradient(shape.hidden),
        bias_gradient(shape.hidden) {
    const std::int64_t hidden = shape.hidden;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      const double* row = x.data() + t * hidden;
      double total = 0, squares = 0;
      for (std::int64_t i = 0; i < hidden; ++i) total += row[i];
      mean[t] = centered ? total / hidden : 0;
      for (std::int64_t i = 0; i < hidden; ++i) squares += (row[i] - mean[t]) * (row[i] - mean[t]);
      inverse[t] = 1 / std::sqrt(squares / hidden + epsilon);
      double d_total = 0, dn_total = 0;
      for (std::int64_t i = 0; i < hidden; ++i) {
        const double n = (row[i] - mean[t]) * inverse[t], g = dy[t * hidden + i];
        output[t * hidden + i] = n * weight[i] + bias[i];
        weight_gradient[i] += g * n;
        bias_gradient[i] += g;
        d_total += g * weight[i];
        dn_total += g * weight[i] * n;
      }
      for (std::int64_t i = 0; i < hidden; ++i) {
        const double n = (row[i] - mean[t]) * inverse[t];
        input_gradient[t * hidden + i] =
            inverse[t] *
                (dy[t * hidden + i] * weight[i] - (centered ? d_total / hidden : 0) - n * dn_total / hidden) +
            residual[t * hidden + i];
      }
    }
  }
};

template <class T, class G>
std::string name_of(Shape shape, bool centered, int variant) {
  return std::string(centered ? "layer " : "rms ") + std::to_string(shape.tokens) + "x" +
         std::to_string(shape.hidden) + " variant " + std::to_string(variant) + " " +
         std::string(backend::name_of(backend::data_type_of<T>)) + " " +
         std::string(backend::name_of(backend::data_type_of<G>));
}

/// variant 0: gradients set; 1: with a residual gradient, gradients added; 2: as 1 with the input gradient in
/// place of the residual gradient; 3: as 0 with the input gradient in place of the output gradient, no bias.
template <class Space, class T, class G>
void check(HostAgreement& agreement, Shape shape, bool centered, int variant) {
  using A = backend::Accumulator<T>;
  const auto [tokens, hidden] = shape;
  const std::string name = name_of<T, G>(shape, centered, variant);
  INFO(name);
  const bool adds = variant == 1 || variant == 2, has_bias = centered && variant != 3;
  const auto x = normal_values<T>(tokens * hidden, 1, 0.5, 2), dy = normal_values<T>(tokens * hidden, 2);
  const auto w = normal_values<T>(hidden, 3, 1, 0.5);
  const auto b = has_bias ? normal_values<T>(hidden, 4) : std::vector<double>(hidden, 0.0);
  const auto r = adds ? normal_values<T>(tokens * hidden, 5) : std::vector<double>(tokens * hidden, 0.0);
  const auto before = normal_values<G>(hidden, 6);
  Reference reference(centered, shape, x, w, b, dy, r);
  if (adds) {
    for (std::int64_t i = 0; i < hidden; ++i) {
      reference.weight_gradient[i] += before[i];
      reference.bias_gradient[i] += before[i];
    }
  }

  KernelRun<Space> run;
  using In = backend::Matrix<const T, Space>;
  const auto input = run.template input<T>(x, hidden);
  const auto weight = run.template input<T>(w);
  const auto bias = has_bias ? run.template input<T>(b) : backend::Vector<const T, Space>();
  const auto output = run.template output<T>(tokens, hidden);
  const auto mean = run.template output<A>(tokens), inverse = run.template output<A>(tokens);
  const auto input_gradient = variant == 2   ? run.template in_out<T>(r, hidden)
                              : variant == 3 ? run.template in_out<T>(dy, hidden)
                                             : run.template output<T>(tokens, hidden);
  const In output_gradient = variant == 3 ? In(input_gradient) : run.template input<T>(dy, hidden);
  const In residual_gradient = variant == 1   ? run.template input<T>(r, hidden)
                               : variant == 2 ? In(input_gradient)
                                              : In();
  const auto weight_gradient = adds ? run.template in_out<G>(before) : run.template output<G>(hidden);
  const auto bias_gradient = !has_bias ? backend::Vector<G, Space>()
                             : adds    ? run.template in_out<G>(before)
                                       : run.template output<G>(hidden);
  const auto workspace = run.template workspace<A>(
      (centered ? 2 : 1) * kernels::normalization_workspace_rows(tokens, hidden), hidden);
  agreement.add<Space>(name, run.execute([&] {
    if (centered) {
      kernels::layer_norm_forward<Space, T>(run.stream(), input, weight, bias, output, mean, inverse,
                                            epsilon);
      kernels::layer_norm_backward<Space, T, G>(run.stream(), input, weight, mean, inverse, output_gradient,
                                                residual_gradient, input_gradient, weight_gradient,
                                                bias_gradient, workspace, adds);
    } else {
      kernels::rms_norm_forward<Space, T>(run.stream(), input, weight, output, inverse, epsilon);
      kernels::rms_norm_backward<Space, T, G>(run.stream(), input, weight, inverse, output_gradient,
                                              residual_gradient, input_gradient, weight_gradient, workspace,
                                              adds);
    }
  }));
  check_close(run.values(output), reference.output, tolerance<T>());
  if (centered) check_close(run.values(mean), reference.mean, tolerance<A>());
  check_close(run.values(inverse), reference.inverse, tolerance<A>());
  // A row of one element is constant after centring: its gradient is a difference of equal numbers.
  if (hidden > 1) check_close(run.values(input_gradient), reference.input_gradient, tolerance<T>());
  check_close(run.values(weight_gradient), reference.weight_gradient, tolerance<G>());
  if (has_bias) check_close(run.values(bias_gradient), reference.bias_gradient, tolerance<G>());
}

}  // namespace

TEST_CASE("RMS norm and its gradients agree with the definition") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const Shape& shape : shapes)
      for (int variant = 0; variant < 4; ++variant) check<Space, T, G>(agreement, shape, false, variant);
  });
}

TEST_CASE("layer norm and its gradients agree with the definition") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const Shape& shape : shapes)
      for (int variant = 0; variant < 4; ++variant) check<Space, T, G>(agreement, shape, true, variant);
  });
}

TEST_CASE("normalizations of more rows than a GPU works on at once agree with the definition") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const Shape& shape : {Shape{6000, 8}, Shape{4500, 136}, Shape{2200, 1032}})
      for (const bool centered : {false, true}) check<Space, T, G>(agreement, shape, centered, 2);
  });
}

TEST_CASE("layer norm keeps its accuracy where the mean is far larger than the deviation") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t hidden = 512;
    std::vector<double> x(hidden);
    for (std::int64_t i = 0; i < hidden; ++i) x[i] = 1024 + (i % 4) * 0.5;
    KernelRun<Space> run;
    const auto input = run.template input<float>(x, hidden);
    const auto ones = run.template input<float>(std::vector<double>(hidden, 1.0));
    const auto output = run.template output<float>(1, hidden);
    const auto mean = run.template output<float>(1), inverse = run.template output<float>(1);
    run.execute([&] {
      kernels::layer_norm_forward<Space, float>(run.stream(), input, ones, {}, output, mean, inverse,
                                                epsilon);
    });
    const double inverse_std = 1 / std::sqrt(0.3125 + epsilon);
    std::vector<double> reference(hidden);
    for (std::int64_t i = 0; i < hidden; ++i) reference[i] = (x[i] - 1024.75) * inverse_std;
    check_close(run.values(output), reference, tolerance<float>());
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
namespace {

/// Loss of the forward kernels as a function of input, weight and bias laid out one behind the other.
double loss_of(bool centered, Shape shape, const std::vector<double>& point, const std::vector<double>& c) {
  using Space = backend::Serial;
  const auto [tokens, hidden] = shape;
  const auto weight_begin = point.begin() + tokens * hidden, bias_begin = weight_begin + hidden;
  KernelRun<Space> run;
  const auto input = run.input<double>(std::vector<double>(point.begin(), weight_begin), hidden);
  const auto weight = run.input<double>(std::vector<double>(weight_begin, bias_begin));
  const auto bias = run.input<double>(std::vector<double>(bias_begin, bias_begin + hidden));
  const auto output = run.output<double>(tokens, hidden);
  const auto mean = run.output<double>(tokens), inverse = run.output<double>(tokens);
  run.execute([&] {
    if (centered) {
      kernels::layer_norm_forward<Space, double>(run.stream(), input, weight, bias, output, mean, inverse,
                                                 epsilon);
    } else {
      kernels::rms_norm_forward<Space, double>(run.stream(), input, weight, output, inverse, epsilon);
    }
  });
  return weighted_sum(run.values(output), c);
}

}  // namespace

TEST_CASE("normalization gradients in double agree with finite differences") {
  using Space = backend::Serial;
  const Shape shape{5, 6};
  const auto [tokens, hidden] = shape;
  const auto x = normal_values<double>(tokens * hidden, 1), w = normal_values<double>(hidden, 2, 1, 0.3);
  const auto c = normal_values<double>(tokens * hidden, 3);
  std::vector<double> point = x;
  point.insert(point.end(), w.begin(), w.end());
  point.insert(point.end(), hidden, 0.25);
  for (const bool centered : {false, true}) {
    INFO(centered);
    KernelRun<Space> run;
    const auto input = run.input<double>(x, hidden), output_gradient = run.input<double>(c, hidden);
    const auto weight = run.input<double>(w);
    const auto output = run.output<double>(tokens, hidden),
               input_gradient = run.output<double>(tokens, hidden);
    const auto mean = run.output<double>(tokens), inverse = run.output<double>(tokens);
    const auto weight_gradient = run.output<double>(hidden), bias_gradient = run.output<double>(hidden);
    const auto workspace =
        run.workspace<double>(2 * kernels::normalization_workspace_rows(tokens, hidden), hidden);
    run.execute([&] {
      if (centered) {
        kernels::layer_norm_forward<Space, double>(run.stream(), input, weight, {}, output, mean, inverse,
                                                   epsilon);
        kernels::layer_norm_backward<Space, double, double>(run.stream(), input, weight, mean, inverse,
                                                            output_gradient, {}, input_gradient,
                                                            weight_gradient, bias_gradient, workspace, false);
      } else {
        kernels::rms_norm_forward<Space, double>(run.stream(), input, weight, output, inverse, epsilon);
        kernels::rms_norm_backward<Space, double, double>(run.stream(), input, weight, inverse,
                                                          output_gradient, {}, input_gradient,
                                                          weight_gradient, workspace, false);
      }
    });
    std::vector<double> gradient = run.values(input_gradient);
    const auto dw = run.values(weight_gradient);
    gradient.insert(gradient.end(), dw.begin(), dw.end());
    const auto db = centered ? run.values(bias_gradient) : std::vector<double>(hidden, 0.0);
    gradient.insert(gradient.end(), db.begin(), db.end());
    check_gradient([&](const std::vector<double>& at) { return loss_of(centered, shape, at, c); }, point,
                   gradient);
  }
}
#endif

TEST_CASE("normalization refuses operands that do not fit") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto input = run.template output<float>(4, 6), output = run.template output<float>(4, 6);
    const auto weight = run.template output<float>(5), inverse = run.template output<float>(4);
    CHECK_THROWS_AS(
        (kernels::rms_norm_forward<Space, float>(run.stream(), input, weight, output, inverse, 1e-5)),
        ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
