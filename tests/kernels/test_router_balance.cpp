// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/router.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

#include <limits>

using namespace encore;
using namespace encore::tests;

TEST_CASE("jitter multiplies each element by its own number from 1 - epsilon to 1 + epsilon") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    for (const std::int64_t columns : {1, 7, 64, 257}) {
      const std::int64_t rows = 9;
      const backend::RandomState state{17, 5};
      const double epsilon = 0.125;
      const std::uint32_t segment = 3;
      const auto x = normal_values<T>(rows * columns, 1), dy = normal_values<T>(rows * columns, 2);
      std::vector<double> y(x.size()), dx(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double uniform = backend::random_uniform(state, segment, i);
        y[i] = x[i] * (1 + epsilon * (2 * uniform - 1));
        dx[i] = dy[i] * (1 + epsilon * (2 * uniform - 1));
      }
      KernelRun<Space> run;
      const auto input = run.template input<T>(x, columns), gradient = run.template input<T>(dy, columns);
      const auto scalar = run.template input<double>(std::vector<double>{epsilon});
      const auto words =
          run.template input<std::uint64_t>(std::vector<std::uint64_t>{state.seed, state.offset});
      const auto* random = reinterpret_cast<const backend::RandomState*>(words.data());
      const auto output = run.template output<T>(rows, columns);
      const auto in_place = run.template in_out<T>(dy, columns);
      agreement.add<Space>(std::to_string(columns) + " of " + std::to_string(sizeof(T)), run.execute([&] {
        kernels::router_jitter<Space, T>(run.stream(), input, output, scalar.data(), random, segment);
        kernels::router_jitter<Space, T>(run.stream(), in_place, in_place, scalar.data(), random, segment);
      }));
      check_close(run.values(output), y, tolerance<T, A>());
      check_close(run.values(in_place), dx, tolerance<T, A>());
    }
  });
}

TEST_CASE("jitter without an epsilon changes nothing") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    const auto x = normal_values<T>(60, 1);
    KernelRun<Space> run;
    const auto input = run.template input<T>(x, 12);
    const auto scalar = run.template input<double>(std::vector<double>{0});
    const auto words = run.template input<std::uint64_t>(std::vector<std::uint64_t>{1, 2});
    const auto output = run.template output<T>(5, 12);
    run.execute([&] {
      kernels::router_jitter<Space, T>(run.stream(), input, output, scalar.data(),
                                       reinterpret_cast<const backend::RandomState*>(words.data()), 0);
    });
    CHECK(run.values(output) == x);
  });
}

TEST_CASE("counts of microbatches add up") {
  for_each_space([]<class Space>(Types<Space>) {
    const auto first = integer_values(300, 0, 1000, 1), second = integer_values(300, 0, 1000, 2);
    std::vector<double> sum(300);
    for (int i = 0; i < 300; ++i) sum[i] = first[i] + second[i];
    KernelRun<Space> run;
    const auto one = run.template input<std::int32_t>(first), two = run.template input<std::int32_t>(second);
    const auto counts = run.template output<std::int32_t>(300);
    run.execute([&] {
      kernels::accumulate_counts<Space>(run.stream(), one, counts, false);
      kernels::accumulate_counts<Space>(run.stream(), two, counts, true);
    });
    CHECK(run.values(counts) == sum);
  });
}

TEST_CASE("an expert's bias rises by the rate below the mean count, falls above it and stays at it") {
  for_each_space_and_type([]<class Space, class A>(Types<Space, A>) {
    if constexpr (!std::is_same_v<A, backend::bfloat16>) {
      const std::vector<std::int32_t> counts{1, 2, 3, 2, 0, 0, 0, 8, 5, 5, 5, 5};
      const std::vector<double> signs{1, 0, -1, 0, 1, 1, 1, -1, 0, 0, 0, 0};
      const auto before = normal_values<A>(12, 3);
      const double rate = 0.0078125;
      KernelRun<Space> run;
      const auto count = run.template input<std::int32_t>(counts, 4);
      const auto step = run.template input<double>(std::vector<double>{rate});
      const auto bias = run.template in_out<A>(before, 4);
      run.execute([&] {
        kernels::expert_bias_update<Space, A>(run.stream(), count, step.data(), nullptr, nullptr, nullptr,
                                              bias);
      });
      std::vector<double> expected(12);
      for (int i = 0; i < 12; ++i) expected[i] = before[i] + rate * signs[i];
      check_close(run.values(bias), expected, tolerance<A>());
    }
  });
}

TEST_CASE("the experts' biases stay when the step is skipped by the rule of the optimizer, or held") {
  for_each_space([]<class Space>(Types<Space>) {
    const double infinity = std::numeric_limits<double>::infinity();
    struct Case {
      double norm, skip_above, hold;
      bool skipped;
    };
    const std::vector<Case> cases{{2, 1, 0, true},
                                  {1, 1, 0, false},
                                  {std::nan(""), 5, 0, true},
                                  {infinity, 5, 0, true},
                                  {std::nan(""), 0, 0, false},
                                  {infinity, 0, 0, false},
                                  {0.5, infinity, 0, false},
                                  {1, 0, 1, true}};
    for (const Case& c : cases) {
      KernelRun<Space> run;
      const auto count = run.template input<std::int32_t>(std::vector<std::int32_t>{0, 4}, 2);
      const auto scalars = run.template input<double>(std::vector<double>{0.5, c.norm, c.skip_above, c.hold});
      const auto bias = run.template in_out<float>(std::vector<float>{1, 1}, 2);
      run.execute([&] {
        kernels::expert_bias_update<Space, float>(run.stream(), count, scalars.data(), scalars.data() + 1,
                                                  scalars.data() + 2, scalars.data() + 3, bias);
      });
      CHECK(run.values(bias) == (c.skipped ? std::vector<double>{1, 1} : std::vector<double>{1.5, 0.5}));
    }
  });
}
