// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/philox.hpp>
#include <encore/kernels/initialization.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

#include <limits>
#include <numbers>

using namespace encore;
using namespace encore::tests;

TEST_CASE("normal numbers are the Box-Muller transform of the element's Philox words") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    for (const std::int64_t size : {1, 2, 3, 4, 5, 1003}) {
      KernelRun<Space> run;
      const auto values = run.template output<T>(size);
      run.execute([&] { kernels::fill_normal<Space, T>(run.stream(), values, 0.5, 0.02, 99, 7); });
      std::vector<double> expected(size);
      for (std::int64_t e = 0; e < size; ++e) {
        const auto words = backend::random_words({99, 0}, 7, e / 4);
        const int pair = e % 4 / 2;
        const double radius = std::sqrt(-2 * std::log((words.word[2 * pair] + 1.0) / 4294967296.0));
        const double angle = 2 * std::numbers::pi * words.word[2 * pair + 1] / 4294967296.0;
        expected[e] = 0.5 + 0.02 * radius * (e % 2 == 0 ? std::cos(angle) : std::sin(angle));
      }
      check_close(run.values(values), expected, tolerance<T>());
    }
  });
}

TEST_CASE("normal numbers have the asked moments and differ between seeds and segments") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t size = 200000;
    std::vector<std::vector<double>> results;
    for (const auto& [seed, segment] : {std::pair<std::uint64_t, std::uint32_t>{1, 0}, {2, 0}, {1, 1}}) {
      KernelRun<Space> run;
      const auto view = run.template output<float>(size);
      run.execute(
          [&, s = seed, g = segment] { kernels::fill_normal<Space, float>(run.stream(), view, 3, 2, s, g); });
      results.push_back(run.values(view));
      double sum = 0, squares = 0, fourth = 0;
      for (const double value : results.back()) {
        const double z = (value - 3) / 2;
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
      }
      // Four standard deviations of each estimate.
      CHECK(std::abs(sum / size) < 4 / std::sqrt(size));
      CHECK(std::abs(squares / size - 1) < 4 * std::sqrt(2.0 / size));
      CHECK(std::abs(fourth / size - 3) < 4 * std::sqrt(96.0 / size));
    }
    CHECK(results[0] != results[1]);
    CHECK(results[0] != results[2]);
    CHECK(results[1] != results[2]);
  });
}

TEST_CASE("uniform numbers, logarithms of ranks and inverse softplus of steps are what their formulas say") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    for (const std::int64_t size : {1, 3, 4, 5, 1003}) {
      KernelRun<Space> run;
      const auto uniform = run.template output<T>(size), ranks = run.template output<T>(size),
                 steps = run.template output<T>(size);
      run.execute([&] {
        kernels::fill_uniform<Space, T>(run.stream(), uniform, -0.5, 0.25, 99, 7);
        kernels::fill_log_of_rank<Space, T>(run.stream(), ranks);
        kernels::fill_inverse_softplus_of_step<Space, T>(run.stream(), steps, 0.001, 0.1, 0.002, 98, 6);
      });
      std::vector<double> uniform_expected(size), ranks_expected(size), steps_expected(size);
      for (std::int64_t e = 0; e < size; ++e) {
        const auto draw = [&](std::uint64_t seed, std::uint32_t segment) {
          return backend::random_words({seed, 0}, segment, e / 4).word[e % 4] / 4294967296.0;
        };
        uniform_expected[e] = -0.5 + 0.75 * draw(99, 7);
        ranks_expected[e] = std::log(e + 1.0);
        const double step = std::max(0.001 * std::pow(100.0, draw(98, 6)), 0.002);
        steps_expected[e] = std::log(std::exp(step) - 1);
      }
      check_close(run.values(uniform), uniform_expected, tolerance<T>());
      check_close(run.values(ranks), ranks_expected, tolerance<T>());
      check_close(run.values(steps), steps_expected, tolerance<T>());
      for (const double value : run.values(uniform)) CHECK((value >= -0.5 && value <= 0.25));
    }
  });
}

TEST_CASE("numbers from an element on are those of the longer array, bit for bit") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    const std::int64_t size = 1003;
    const auto fill = [](auto& stream, int kind, auto values, std::int64_t first) {
      switch (kind) {
        case 0: return kernels::fill_normal<Space, T>(stream, values, 0.5, 0.02, 99, 7, first);
        case 1: return kernels::fill_uniform<Space, T>(stream, values, -0.5, 0.25, 99, 7, first);
        case 2: return kernels::fill_log_of_rank<Space, T>(stream, values, first);
        default:
          return kernels::fill_inverse_softplus_of_step<Space, T>(stream, values, 0.001, 0.1, 0.002, 98, 6,
                                                                  first);
      }
    };
    for (int kind = 0; kind < 4; ++kind)
      for (const std::int64_t first : {0, 4, 500, 1000}) {
        CAPTURE(kind);
        CAPTURE(first);
        KernelRun<Space> run;
        const auto whole = run.template output<T>(size), part = run.template output<T>(size - first);
        run.execute([&] {
          fill(run.stream(), kind, whole, 0);
          fill(run.stream(), kind, part, first);
        });
        const std::vector<double> all = run.values(whole);
        CHECK((run.values(part) == std::vector<double>(all.begin() + first, all.end())));
      }
    KernelRun<Space> run;
    CHECK_THROWS_AS(fill(run.stream(), 0, run.template output<T>(8), 2), ConfigurationError);
  });
}

TEST_CASE("a constant fills every element and nothing beside them") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    for (const std::int64_t size : {1, 7, 8, 1001}) {
      KernelRun<Space> run;
      const auto values = run.template in_out<T>(std::vector<double>(size + 2, 9.0));
      run.execute([&] {
        kernels::fill_constant<Space, T>(run.stream(), backend::Vector<T, Space>(values.data(), size), -1.5);
      });
      std::vector<double> expected(size + 2, -1.5);
      expected[size] = expected[size + 1] = 9.0;
      CHECK(run.values(values) == expected);
    }
  });
}

TEST_CASE("conversion to bfloat16 rounds to nearest even and keeps infinities, and back it is exact") {
  using backend::bfloat16;
  for_each_space([]<class Space>(Types<Space>) {
    const double infinity = std::numeric_limits<double>::infinity();
    // 1 + 2^-8 lies between two neighbours and goes to the even one; beyond the largest finite value is
    // infinity.
    const std::vector<double> x{0.0,    -1.0,     1.00390625, 1.01171875, 1.0040,
                                3.4e38, infinity, -infinity,  1e-40,      3.14159274};
    const std::vector<double> y{
        0.0,     -1.0, 1.0, 1.015625, 1.0078125, infinity, infinity, -infinity, double(bfloat16(1e-40F)),
        3.140625};
    KernelRun<Space> run;
    const auto input = run.template input<float>(x);
    const auto rounded = run.template output<bfloat16>(x.size());
    const auto back = run.template output<float>(x.size());
    run.execute([&] {
      kernels::convert<Space, float, bfloat16>(run.stream(), input, rounded);
      kernels::convert<Space, bfloat16, float>(run.stream(), rounded, back);
    });
    CHECK(run.values(rounded) == y);
    CHECK(run.values(back) == y);
  });
}

TEST_CASE("conversion keeps NaN and covers lengths that are no multiple of a packet") {
  using backend::bfloat16;
  for_each_space([]<class Space>(Types<Space>) {
    for (const std::int64_t size : {1, 7, 8, 9, 1001}) {
      std::vector<double> x = normal_values<bfloat16>(size, 1);
      x[size / 2] = std::numeric_limits<double>::quiet_NaN();
      KernelRun<Space> run;
      const auto input = run.template input<float>(x);
      const auto output = run.template output<bfloat16>(size);
      run.execute([&] { kernels::convert<Space, float, bfloat16>(run.stream(), input, output); });
      const auto result = run.values(output);
      for (std::int64_t i = 0; i < size; ++i)
        CHECK((i == size / 2 ? std::isnan(result[i]) : result[i] == x[i]));
    }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("Serial converts from and to double") {
  using backend::bfloat16;
  using Space = backend::Serial;
  const auto x = normal_values<bfloat16>(37, 1);
  KernelRun<Space> run;
  const auto exact = run.input<double>(x);
  const auto single = run.output<float>(37);
  const auto short_values = run.output<bfloat16>(37);
  const auto from_single = run.output<double>(37), from_half = run.output<double>(37);
  run.execute([&] {
    kernels::convert<Space, double, float>(run.stream(), exact, single);
    kernels::convert<Space, double, bfloat16>(run.stream(), exact, short_values);
    kernels::convert<Space, float, double>(run.stream(), single, from_single);
    kernels::convert<Space, bfloat16, double>(run.stream(), short_values, from_half);
  });
  CHECK(run.values(from_single) == x);
  CHECK(run.values(from_half) == x);
}
#endif

TEST_CASE("conversion between different lengths is refused") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto a = run.template output<float>(8);
    const auto b = run.template output<backend::bfloat16>(7);
    CHECK_THROWS_AS((kernels::convert<Space, float, backend::bfloat16>(run.stream(), a, b)),
                    ConfigurationError);
  });
}
