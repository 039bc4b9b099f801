// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/dropout.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

#include <algorithm>

using namespace encore;
using namespace encore::tests;
using backend::RandomState;

namespace {

/// Seed and offset as an input array of the run: RandomState is two 64-bit words.
template <class Space>
const RandomState* state_of(KernelRun<Space>& run, RandomState state) {
  const std::vector<std::uint64_t> words{state.seed, state.offset};
  return reinterpret_cast<const RandomState*>(run.template input<std::uint64_t>(words).data());
}

template <class Space>
const double* scalar(KernelRun<Space>& run, double value) {
  return run.template input<double>(std::vector<double>{value}).data();
}

}  // namespace

TEST_CASE("dropout keeps what the element's random number allows, scales it and adds the residual") {
  HostAgreement agreement;
  const RandomState state{0x123456789abcdefULL, 0x500000003ULL};
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    for (const std::int64_t columns : {1, 3, 8, 100, 1023}) {
      for (const double probability : {0.0, 0.1, 0.5, 1.0}) {
        const std::int64_t size = 5 * columns;
        const std::string name = std::to_string(columns) + " of " + std::to_string(sizeof(T)) +
                                 " probability " + std::to_string(probability);
        INFO(name);
        const auto x = normal_values<T>(size, 1), r = normal_values<T>(size, 2);
        const A scale = probability < 1 ? static_cast<A>(1 / (1 - probability)) : A(0);
        std::vector<double> dropped(size), added(size);
        for (std::int64_t e = 0; e < size; ++e) {
          const bool keep = double(backend::random_uniform(state, 77, e)) >= probability;
          const A kept = keep ? static_cast<A>(x[e]) * scale : A(0);
          dropped[e] = static_cast<double>(static_cast<T>(kept));
          added[e] = kept + r[e];
        }
        KernelRun<Space> run;
        const auto input = run.template input<T>(x, columns), residual = run.template input<T>(r, columns);
        const auto plain = run.template output<T>(5, columns),
                   with_residual = run.template output<T>(5, columns);
        const auto backward = run.template output<T>(5, columns);
        const auto x_place = run.template in_out<T>(x, columns), r_place = run.template in_out<T>(r, columns);
        const auto p = scalar(run, probability);
        const auto s = state_of(run, state);
        agreement.add<Space>(name, run.execute([&] {
          kernels::dropout_forward<Space, T>(run.stream(), input, {}, plain, p, s, 77);
          kernels::dropout_forward<Space, T>(run.stream(), input, residual, with_residual, p, s, 77);
          kernels::dropout_forward<Space, T>(run.stream(), input, r_place, r_place, p, s, 77);
          kernels::dropout_backward<Space, T>(run.stream(), input, backward, p, s, 77);
          kernels::dropout_backward<Space, T>(run.stream(), x_place, x_place, p, s, 77);
        }));
        CHECK(run.values(plain) == dropped);
        CHECK(run.values(backward) == dropped);
        CHECK(run.values(x_place) == dropped);
        check_close(run.values(with_residual), added, tolerance<T>());
        CHECK(run.values(r_place) == run.values(with_residual));
      }
    }
  });
}

TEST_CASE("dropout drops the asked share, and other elements for another seed, offset or segment") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t size = 100000;
    KernelRun<Space> run;
    const auto ones = run.template input<float>(std::vector<double>(size, 1.0), 1000);
    const auto p = scalar(run, 0.3);
    const RandomState states[] = {{1, 0}, {2, 0}, {1, 1}, {1, 0}};
    std::vector<std::vector<double>> results;
    for (int i = 0; i < 4; ++i) {
      const auto output = run.template output<float>(100, 1000);
      const auto s = state_of(run, states[i]);
      run.execute([&] {
        kernels::dropout_forward<Space, float>(run.stream(), ones, {}, output, p, s, i == 3 ? 1 : 0);
      });
      results.push_back(run.values(output));
      const auto zeros = std::count(results[i].begin(), results[i].end(), 0.0);
      CHECK(std::abs(zeros / double(size) - 0.3) < 0.006);  // Four standard deviations.
      for (int j = 0; j < i; ++j) CHECK(results[i] != results[j]);
    }
  });
}

TEST_CASE("dropout reads probability and random state when it runs, not when it is recorded") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto input = run.template input<float>(std::vector<double>(64, 1.0), 8);
    const auto output = run.template output<float>(8, 8);
    const auto probability = run.template in_out<double>(std::vector<double>{0.0});
    const auto s = state_of(run, {3, 4});
    const auto kernel = [&] {
      kernels::dropout_forward<Space, float>(run.stream(), input, {}, output, probability.data(), s, 0);
    };
    run.execute(kernel);
    backend::RecordedGraph<Space> graph(run.stream(), "dropout", kernel);
    const double one = 1.0;
    run.stream().copy_to_device(probability.data(), &one, sizeof one, "test");
    graph.replay();
    CHECK(run.values(output) == std::vector<double>(64, 0.0));
  });
}

TEST_CASE("dropout refuses shapes that differ") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto a = run.template output<float>(2, 6), b = run.template output<float>(3, 6);
    CHECK_THROWS_AS((kernels::dropout_forward<Space, float>(run.stream(), a, b, a, nullptr, nullptr, 0)),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::dropout_backward<Space, float>(run.stream(), a, b, nullptr, nullptr, 0)),
                    ConfigurationError);
  });
}
