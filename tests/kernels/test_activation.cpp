// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/activation.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

#include <algorithm>
#include <numbers>

using namespace encore;
using namespace encore::tests;
using kernels::Gelu;

namespace {

double gelu(Gelu kind, double x) {
  if (kind == Gelu::exact) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(Gelu kind, double x) {
  if (kind == Gelu::exact)
    return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) +
           x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  const double root = std::sqrt(2 / std::numbers::pi), t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

struct Shape {
  std::int64_t rows, columns;
};
constexpr Shape shapes[] = {{1, 1}, {1, 8}, {3, 7}, {5, 64}, {33, 100}, {7, 1023}, {530, 1024}};

template <class T>
std::string name_of(const Shape& shape, Gelu kind = Gelu::exact) {
  return std::string(backend::name_of(backend::data_type_of<T>)) + " " + std::to_string(shape.rows) + "x" +
         std::to_string(shape.columns) + (kind == Gelu::tanh ? " tanh" : "");
}

}  // namespace

TEST_CASE("GELU and its gradient agree with the closed forms") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
      for (const Shape& shape : shapes) {
        const std::string name = name_of<T>(shape, kind);
        INFO(name);
        const auto x = normal_values<T>(shape.rows * shape.columns, 1, 0, 2);
        const auto dy = normal_values<T>(shape.rows * shape.columns, 2);
        std::vector<double> y(x.size()), dx(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          y[i] = gelu(kind, x[i]);
          dx[i] = dy[i] * gelu_slope(kind, x[i]);
        }
        KernelRun<Space> run;
        const auto input = run.template input<T>(x, shape.columns);
        const auto gradient = run.template input<T>(dy, shape.columns);
        const auto output = run.template output<T>(shape.rows, shape.columns);
        const auto input_gradient = run.template output<T>(shape.rows, shape.columns);
        agreement.add<Space>(name, run.execute([&] {
          kernels::gelu_forward<Space, T>(run.stream(), kind, input, output);
          kernels::gelu_backward<Space, T>(run.stream(), kind, input, gradient, input_gradient);
        }));
        check_close(run.values(output), y, tolerance<T>());
        check_close(run.values(input_gradient), dx, tolerance<T>());
      }
    }
  });
}

TEST_CASE("GELU neither overflows nor loses its tails at large arguments") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
      const std::vector<double> x{-1e4, -100, -40, -12, 0, 12, 40, 100, 1e4};
      KernelRun<Space> run;
      const auto input = run.template input<T>(x, 9);
      const auto ones = run.template input<T>(std::vector<double>(9, 1.0), 9);
      const auto output = run.template output<T>(1, 9);
      const auto slope = run.template output<T>(1, 9);
      run.execute([&] {
        kernels::gelu_forward<Space, T>(run.stream(), kind, input, output);
        kernels::gelu_backward<Space, T>(run.stream(), kind, input, ones, slope);
      });
      const auto y = run.values(output), dydx = run.values(slope), rounded = run.values(input);
      for (int i = 0; i < 9; ++i) {
        CHECK(std::abs(y[i] - std::max(rounded[i], 0.0)) <= 1e-6);
        CHECK(std::abs(dydx[i] - (rounded[i] > 0 ? 1.0 : rounded[i] < 0 ? 0.0 : 0.5)) <= 1e-6);
      }
    }
  });
}

TEST_CASE("GELU's output may replace its input, and its gradient either operand") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    const auto x = normal_values<T>(77, 1), dy = normal_values<T>(77, 2);
    KernelRun<Space> run;
    const auto input = run.template input<T>(x, 7), gradient = run.template input<T>(dy, 7);
    const auto output = run.template output<T>(11, 7), input_gradient = run.template output<T>(11, 7);
    const auto x_place = run.template in_out<T>(x, 7), x_place2 = run.template in_out<T>(x, 7);
    const auto dy_place = run.template in_out<T>(dy, 7);
    run.execute([&] {
      kernels::gelu_forward<Space, T>(run.stream(), Gelu::tanh, input, output);
      kernels::gelu_forward<Space, T>(run.stream(), Gelu::tanh, x_place, x_place);
      kernels::gelu_backward<Space, T>(run.stream(), Gelu::exact, input, gradient, input_gradient);
      kernels::gelu_backward<Space, T>(run.stream(), Gelu::exact, x_place2, gradient, x_place2);
      kernels::gelu_backward<Space, T>(run.stream(), Gelu::exact, input, dy_place, dy_place);
    });
    CHECK(run.values(x_place) == run.values(output));
    CHECK(run.values(x_place2) == run.values(input_gradient));
    CHECK(run.values(dy_place) == run.values(input_gradient));
  });
}

TEST_CASE("SwiGLU multiplies the activated first half of a row with its second half") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const Shape& shape : shapes) {
      const std::string name = name_of<T>(shape);
      INFO(name);
      const auto [rows, ffn] = shape;
      const auto x = normal_values<T>(rows * 2 * ffn, 1, 0, 2), dy = normal_values<T>(rows * ffn, 2);
      std::vector<double> y(rows * ffn), dx(rows * 2 * ffn);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < ffn; ++c) {
          const double gate = x[r * 2 * ffn + c], up = x[r * 2 * ffn + ffn + c], d = dy[r * ffn + c];
          y[r * ffn + c] = silu(gate) * up;
          dx[r * 2 * ffn + c] = d * up * silu_slope(gate);
          dx[r * 2 * ffn + ffn + c] = d * silu(gate);
        }
      }
      KernelRun<Space> run;
      const auto gate_up = run.template input<T>(x, 2 * ffn);
      const auto gradient = run.template input<T>(dy, ffn);
      const auto output = run.template output<T>(rows, ffn);
      const auto gate_up_gradient = run.template output<T>(rows, 2 * ffn);
      const auto in_place = run.template in_out<T>(x, 2 * ffn);
      agreement.add<Space>(name, run.execute([&] {
        kernels::swiglu_forward<Space, T>(run.stream(), gate_up, output);
        kernels::swiglu_backward<Space, T>(run.stream(), gate_up, gradient, gate_up_gradient);
        kernels::swiglu_backward<Space, T>(run.stream(), in_place, gradient, in_place);
      }));
      check_close(run.values(output), y, tolerance<T>());
      check_close(run.values(gate_up_gradient), dx, tolerance<T>());
      CHECK(run.values(in_place) == run.values(gate_up_gradient));
    }
  });
}

TEST_CASE("clamped SwiGLU is that of GPT-OSS, and no gradient flows past a limit") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const Shape& shape : shapes) {
      const std::string name = name_of<T>(shape);
      INFO(name);
      const auto [rows, ffn] = shape;
      const double limit = 1.5;
      const auto x = normal_values<T>(rows * 2 * ffn, 1, 0, 2), dy = normal_values<T>(rows * ffn, 2);
      std::vector<double> y(rows * ffn), dx(rows * 2 * ffn);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < ffn; ++c) {
          const double gate = x[r * 2 * ffn + c], up = x[r * 2 * ffn + ffn + c], d = dy[r * ffn + c];
          const double g = std::min(gate, limit), u = std::clamp(up, -limit, limit);
          const double s = 1 / (1 + std::exp(-1.702 * g));
          y[r * ffn + c] = g * s * (u + 1);
          dx[r * 2 * ffn + c] = gate > limit ? 0 : d * (u + 1) * s * (1 + 1.702 * g * (1 - s));
          dx[r * 2 * ffn + ffn + c] = std::abs(up) > limit ? 0 : d * g * s;
        }
      KernelRun<Space> run;
      const auto gate_up = run.template input<T>(x, 2 * ffn);
      const auto gradient = run.template input<T>(dy, ffn);
      const auto output = run.template output<T>(rows, ffn);
      const auto gate_up_gradient = run.template output<T>(rows, 2 * ffn);
      const auto in_place = run.template in_out<T>(x, 2 * ffn);
      agreement.add<Space>(name, run.execute([&] {
        kernels::swiglu_clamped_forward<Space, T>(run.stream(), limit, gate_up, output);
        kernels::swiglu_clamped_backward<Space, T>(run.stream(), limit, gate_up, gradient, gate_up_gradient);
        kernels::swiglu_clamped_backward<Space, T>(run.stream(), limit, in_place, gradient, in_place);
      }));
      check_close(run.values(output), y, tolerance<T>());
      check_close(run.values(gate_up_gradient), dx, tolerance<T>());
      CHECK(run.values(in_place) == run.values(gate_up_gradient));
    }
  });
}

TEST_CASE("squared ReLU and its gradient agree with the closed forms, in place too") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const Shape& shape : shapes) {
      const std::string name = name_of<T>(shape);
      INFO(name);
      const auto x = normal_values<T>(shape.rows * shape.columns, 1, 0, 2);
      const auto dy = normal_values<T>(shape.rows * shape.columns, 2);
      std::vector<double> y(x.size()), dx(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        y[i] = std::max(x[i], 0.0) * std::max(x[i], 0.0);
        dx[i] = dy[i] * 2 * std::max(x[i], 0.0);
      }
      KernelRun<Space> run;
      const auto input = run.template input<T>(x, shape.columns);
      const auto gradient = run.template input<T>(dy, shape.columns);
      const auto output = run.template output<T>(shape.rows, shape.columns);
      const auto input_gradient = run.template output<T>(shape.rows, shape.columns);
      const auto in_place = run.template in_out<T>(x, shape.columns);
      agreement.add<Space>(name, run.execute([&] {
        kernels::relu_squared_forward<Space, T>(run.stream(), input, output);
        kernels::relu_squared_backward<Space, T>(run.stream(), input, gradient, input_gradient);
        kernels::relu_squared_backward<Space, T>(run.stream(), in_place, gradient, in_place);
      }));
      check_close(run.values(output), y, tolerance<T>());
      check_close(run.values(input_gradient), dx, tolerance<T>());
      CHECK(run.values(in_place) == run.values(input_gradient));
    }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("activation gradients in double agree with finite differences") {
  using Space = backend::Serial;
  const auto x = normal_values<double>(24, 3), c = normal_values<double>(24, 4),
             c_half = normal_values<double>(12, 5);
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    KernelRun<Space> run;
    const auto input = run.input<double>(x, 6), weights = run.input<double>(c, 6);
    const auto gradient = run.output<double>(4, 6);
    run.execute([&] { kernels::gelu_backward<Space, double>(run.stream(), kind, input, weights, gradient); });
    check_gradient(
        [&](const std::vector<double>& point) {
          KernelRun<Space> forward;
          const auto in = forward.input<double>(point, 6);
          const auto out = forward.output<double>(4, 6);
          forward.execute([&] { kernels::gelu_forward<Space, double>(forward.stream(), kind, in, out); });
          return weighted_sum(forward.values(out), c);
        },
        x, run.values(gradient));
  }
  KernelRun<Space> run;
  const auto input = run.input<double>(x, 6), weights = run.input<double>(c_half, 3);
  const auto gradient = run.output<double>(4, 6);
  run.execute([&] { kernels::swiglu_backward<Space, double>(run.stream(), input, weights, gradient); });
  check_gradient(
      [&](const std::vector<double>& point) {
        KernelRun<Space> forward;
        const auto in = forward.input<double>(point, 6);
        const auto out = forward.output<double>(4, 3);
        forward.execute([&] { kernels::swiglu_forward<Space, double>(forward.stream(), in, out); });
        return weighted_sum(forward.values(out), c_half);
      },
      x, run.values(gradient));
  // Points at a limit have no derivative: keep away from 1 and from 0.
  std::vector<double> apart = x;
  for (double& value : apart)
    if (std::abs(std::abs(value) - 1) < 0.01 || std::abs(value) < 0.01) value += 0.05;
  KernelRun<Space> others;
  const auto apart_input = others.input<double>(apart, 6), all_weights = others.input<double>(c, 6);
  const auto half_weights = others.input<double>(c_half, 3);
  const auto clamped_gradient = others.output<double>(4, 6), squared_gradient = others.output<double>(4, 6);
  others.execute([&] {
    kernels::swiglu_clamped_backward<Space, double>(others.stream(), 1.0, apart_input, half_weights,
                                                    clamped_gradient);
    kernels::relu_squared_backward<Space, double>(others.stream(), apart_input, all_weights,
                                                  squared_gradient);
  });
  check_gradient(
      [&](const std::vector<double>& point) {
        KernelRun<Space> forward;
        const auto in = forward.input<double>(point, 6);
        const auto out = forward.output<double>(4, 3);
        forward.execute(
            [&] { kernels::swiglu_clamped_forward<Space, double>(forward.stream(), 1.0, in, out); });
        return weighted_sum(forward.values(out), c_half);
      },
      apart, others.values(clamped_gradient));
  check_gradient(
      [&](const std::vector<double>& point) {
        KernelRun<Space> forward;
        const auto in = forward.input<double>(point, 6);
        const auto out = forward.output<double>(4, 6);
        forward.execute([&] { kernels::relu_squared_forward<Space, double>(forward.stream(), in, out); });
        return weighted_sum(forward.values(out), c);
      },
      apart, others.values(squared_gradient));
}
#endif

TEST_CASE("activations refuse shapes that do not fit before anything runs") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto input = run.template output<float>(2, 6);
    const auto output = run.template output<float>(2, 4);
    CHECK_THROWS_AS((kernels::gelu_forward<Space, float>(run.stream(), Gelu::tanh, input, output)),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::swiglu_forward<Space, float>(run.stream(), input, output)), ConfigurationError);
    CHECK_THROWS_AS((kernels::swiglu_clamped_forward<Space, float>(run.stream(), 7.0, input, output)),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::relu_squared_forward<Space, float>(run.stream(), input, output)),
                    ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
