// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/squared_error.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

struct Shape {
  std::int64_t rows, columns;
};
constexpr Shape shapes[] = {{1, 1}, {3, 7}, {1000, 1}, {1025, 2}, {40000, 3}, {600000, 2}};

template <class T>
kernels::StridedMatrix<const T> in_rows(const T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns, 1};
}
template <class T>
kernels::StridedMatrix<const T> in_columns(const T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, 1, rows};
}

double reference(const std::vector<double>& output, const std::vector<double>& target) {
  double sum = 0;
  for (std::size_t i = 0; i < output.size(); ++i) sum += (output[i] - target[i]) * (output[i] - target[i]);
  return sum / static_cast<double>(output.size());
}

}  // namespace

TEST_CASE("the mean squared error and its gradient are those of float64, whatever the layout of the target") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const auto& [rows, columns] : shapes) {
      if (rows > 100000 && sizeof(T) != 4) continue;  // More partial sums than shares, once.
      const std::int64_t count = rows * columns;
      const std::string name =
          std::to_string(rows) + "x" + std::to_string(columns) + "/" + std::to_string(sizeof(T));
      INFO(name);
      const auto y = normal_values<T>(count, 1), t = normal_values<T>(count, 2);
      std::vector<double> turned(count), gradient(count);
      for (std::int64_t i = 0; i < count; ++i) {
        turned[i % columns * rows + i / columns] = t[i];
        gradient[i] = 2 * (y[i] - t[i]) / static_cast<double>(count);
      }
      KernelRun<Space> run;
      const T* output = run.template input<T>(y).data();
      const T* target = run.template input<T>(t).data();
      const T* target_by_columns = run.template input<T>(turned).data();
      const auto result = run.template output<T>(rows, columns);
      const auto error = run.template output<double>(1);
      const auto partials = run.template output<double>(kernels::squared_error_partial_count(count));
      const auto bytes = run.execute([&] {
        kernels::mean_squared_error<Space, T>(run.stream(), in_rows(output, rows, columns),
                                              in_rows(target, rows, columns), result, partials, error.data());
      });
      agreement.add<Space>(name, bytes);
      // Differences are rounded to Accumulator<T> before they are squared.
      check_close(run.values(error), {reference(y, t)}, tolerance<backend::Accumulator<T>>());
      check_close(run.values(result), gradient, tolerance<T>());
      CHECK(run.execute([&] {
        kernels::mean_squared_error<Space, T>(run.stream(), in_rows(output, rows, columns),
                                              in_columns(target_by_columns, rows, columns), result, partials,
                                              error.data());
      }) == bytes);
    }
  });
}

TEST_CASE("the gradient of the mean squared error is the finite difference of it") {
  KernelRun<Kokkos::Serial> run;
  const auto y = normal_values<double>(30, 1), t = normal_values<double>(30, 2);
  const auto output = run.input<double>(y), target = run.input<double>(t);
  const auto gradient = run.output<double>(10, 3);
  const auto error = run.output<double>(1);
  const auto partials = run.output<double>(1);
  run.execute([&] {
    kernels::mean_squared_error<Kokkos::Serial, double>(run.stream(), in_rows(output.data(), 10, 3),
                                                        in_rows(target.data(), 10, 3), gradient, partials,
                                                        error.data());
  });
  check_gradient([&](const std::vector<double>& at) { return reference(at, t); }, y, run.values(gradient));
}

TEST_CASE("a mean squared error of arrays that do not fit each other is refused") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const float* values = run.template input<float>(std::vector<double>(2048, 1.0)).data();
    const auto gradient = run.template output<float>(1024, 2);
    const auto error = run.template output<double>(1);
    const auto partials = run.template output<double>(2);
    const auto call = [&](auto target, auto to, auto work) {
      kernels::mean_squared_error<Space, float>(run.stream(), in_rows(values, 1024, 2), target, to, work,
                                                error.data());
    };
    CHECK_NOTHROW(call(in_rows(values, 1024, 2), gradient, partials));
    CHECK_THROWS_AS(call(in_rows(values, 1023, 2), gradient, partials), ConfigurationError);
    CHECK_THROWS_AS(call(in_rows(values, 1024, 1), gradient, partials), ConfigurationError);
    CHECK_THROWS_AS(
        call(in_rows(values, 1024, 2), backend::Matrix<float, Space>(gradient.data(), 512, 2), partials),
        ConfigurationError);
    CHECK_THROWS_AS(
        call(in_rows(values, 1024, 2), gradient, backend::Vector<double, Space>(partials.data(), 1)),
        ConfigurationError);
  });
}
