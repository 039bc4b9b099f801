// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/causal_convolution.hpp>
#include <encore/kernels/decode_mamba.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

/// Three sequences, two of which begin later; a step of up to four tokens.
const std::vector<std::int32_t> first{0, 7, 3}, count{4, 0, 2};
constexpr std::int64_t sequences = 3, tokens = 4, rows_of_step = sequences * tokens;

template <class Space>
kernels::DecodeRows<Space> step_on(KernelRun<Space>& run) {
  return {run.template input<std::int32_t>(first), run.template input<std::int32_t>(count), tokens};
}

bool holds(std::int64_t row) { return row % tokens < count[row / tokens]; }

}  // namespace

TEST_CASE("the embedding of a step takes each token from its position and marks the rows that hold one") {
  const std::int64_t capacity = 12, vocabulary = 10;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const std::int64_t hidden : {8, 20, 256})
      for (const bool learned : {false, true}) {
        CAPTURE(hidden);
        const auto all = integer_values(sequences * capacity, 0, vocabulary - 1, 1);
        const auto e = normal_values<T>(vocabulary * hidden, 2), p = normal_values<T>(capacity * hidden, 3);
        KernelRun<Space> run;
        const auto step = step_on(run);
        const auto ids = run.template input<std::int32_t>(all, capacity);
        const auto table = run.template input<T>(e, hidden);
        const auto positions = learned ? run.template input<T>(p, hidden) : backend::Matrix<const T, Space>();
        const auto output = run.template output<T>(rows_of_step, hidden);
        const auto live = run.template output<std::int32_t>(rows_of_step);
        run.execute([&] {
          kernels::decode_embedding<Space, T>(run.stream(), step, ids, table, positions, output, live);
        });
        std::vector<double> expected, expected_live;
        for (std::int64_t row = 0; row < rows_of_step; ++row) {
          const std::int64_t sequence = row / tokens, position = first[sequence] + row % tokens;
          expected_live.push_back(holds(row) ? 1 : 0);
          for (std::int64_t h = 0; h < hidden; ++h)
            expected.push_back(!holds(row) ? 0
                                           : e[all[sequence * capacity + position] * hidden + h] +
                                                 (learned ? p[position * hidden + h] : 0));
        }
        check_close(run.values(output), expected, tolerance<T>());
        CHECK(run.values(live) == expected_live);
      }
  });
}

TEST_CASE("positions advance by the tokens of the step") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto counts = run.template input<std::int32_t>(count);
    const auto positions = run.template in_out<std::int32_t>(first);
    run.execute([&] { kernels::advance_positions<Space>(run.stream(), counts, positions); });
    CHECK(run.values(positions) == std::vector<double>{4, 7, 5});
  });
}

TEST_CASE("the convolution of a step goes on from the inputs before it") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const std::int64_t width : {2, 4, 8})
      for (const std::int64_t channels : {1, 33, 256}) {
        const std::string name =
            std::to_string(width) + "/" + std::to_string(channels) + " " + std::to_string(sizeof(T));
        INFO(name);
        const std::int64_t wide = channels + 5, taps = width - 1;
        const auto x = normal_values<T>(rows_of_step * wide, 1), w = normal_values<T>(channels * width, 2);
        const auto b = normal_values<T>(channels, 3), old = normal_values<T>(sequences * taps * channels, 4);
        KernelRun<Space> run;
        const auto step = step_on(run);
        const auto input = run.template input<T>(x, wide);
        const auto weight = run.template input<T>(w, width);
        const auto bias = run.template input<T>(b);
        const auto window = run.template in_out<T>(old);
        const auto output = run.template output<T>(rows_of_step, channels);
        agreement.add<Space>(name, run.execute([&] {
          kernels::causal_convolution_step<Space, T>(
              run.stream(), step, kernels::columns_of<const T, Space>(input, 3, channels), weight, bias,
              window, kernels::columns_of<T, Space>(output));
        }));
        std::vector<double> expected(rows_of_step * channels, 0.0), moved(old.size());
        for (std::int64_t s = 0; s < sequences; ++s)
          for (std::int64_t c = 0; c < channels; ++c) {
            std::vector<double> seen;
            for (std::int64_t k = 0; k < taps; ++k) seen.push_back(old[(s * taps + k) * channels + c]);
            for (std::int64_t t = 0; t < count[s]; ++t) {
              seen.push_back(x[(s * tokens + t) * wide + 3 + c]);
              double sum = b[c];
              for (std::int64_t k = 0; k < width; ++k)
                sum += w[c * width + k] * seen[seen.size() - width + k];
              expected[(s * tokens + t) * channels + c] = sum / (1 + std::exp(-sum));
            }
            for (std::int64_t k = 0; k < taps; ++k)
              moved[(s * taps + k) * channels + c] = seen[seen.size() - taps + k];
          }
        check_close(run.values(output), expected, tolerance<T>());
        CHECK(run.values(window) == moved);
      }
  });
}

TEST_CASE("the state space of a step goes on from the state before it") {
  HostAgreement agreement;
  struct Case {
    std::int64_t heads, head_dim, state, groups;
    double step_maximum;
  };
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    for (const Case& each :
         {Case{1, 1, 1, 1, 0}, Case{4, 8, 16, 2, 0.2}, Case{6, 20, 24, 3, 0}, Case{2, 64, 128, 1, 0}}) {
      const std::string name = std::to_string(each.heads) + "x" + std::to_string(each.head_dim) + "x" +
                               std::to_string(each.state) + " " + std::to_string(sizeof(T));
      INFO(name);
      const kernels::StateSpaceShape shape{sequences,   tokens, each.heads, each.head_dim,    each.state,
                                           each.groups, 256,    0.01,       each.step_maximum};
      const std::int64_t inner = each.heads * each.head_dim, width = each.groups * each.state;
      const auto x = normal_values<T>(rows_of_step * inner, 1), b = normal_values<T>(rows_of_step * width, 2);
      const auto c = normal_values<T>(rows_of_step * width, 3);
      const auto raw = normal_values<T>(rows_of_step * each.heads, 4, -1),
                 bias = normal_values<T>(each.heads, 5);
      const auto log_rate = normal_values<T>(each.heads, 6), skips = normal_values<T>(each.heads, 7);
      const auto old = normal_values<A>(sequences * inner * each.state, 8);
      KernelRun<Space> run;
      const auto step = step_on(run);
      const auto of = [&](const std::vector<double>& values, std::int64_t columns) {
        return kernels::columns_of<const T, Space>(run.template input<T>(values, columns));
      };
      const kernels::StateSpaceInputs<Space, T> inputs{of(x, inner),
                                                       of(b, width),
                                                       of(c, width),
                                                       of(raw, each.heads),
                                                       run.template input<T>(bias),
                                                       run.template input<T>(log_rate),
                                                       run.template input<T>(skips)};
      const auto state = run.template in_out<A>(old);
      const auto output = run.template output<T>(rows_of_step, inner);
      agreement.add<Space>(name, run.execute([&] {
        kernels::state_space_step<Space, T>(run.stream(), step, shape, inputs, state,
                                            kernels::columns_of<T, Space>(output));
      }));
      std::vector<double> expected(rows_of_step * inner, 0.0), moved = old;
      for (std::int64_t s = 0; s < sequences; ++s)
        for (std::int64_t h = 0; h < each.heads; ++h)
          for (std::int64_t t = 0; t < count[s]; ++t) {
            const std::int64_t row = s * tokens + t, group = h / (each.heads / each.groups);
            double time = std::max(std::log1p(std::exp(raw[row * each.heads + h] + bias[h])), 0.01);
            if (each.step_maximum > 0) time = std::min(time, each.step_maximum);
            const double decay = std::exp(-std::exp(log_rate[h]) * time);
            for (std::int64_t p = 0; p < each.head_dim; ++p) {
              const double in = x[row * inner + h * each.head_dim + p];
              double sum = skips[h] * in;
              for (std::int64_t n = 0; n < each.state; ++n) {
                double& entry = moved[((s * each.heads + h) * each.head_dim + p) * each.state + n];
                entry = decay * entry + time * in * b[row * width + group * each.state + n];
                sum += entry * c[row * width + group * each.state + n];
              }
              expected[row * inner + h * each.head_dim + p] = sum;
            }
          }
      check_close(run.values(output), expected, tolerance<T>());
      check_close(run.values(state), moved, tolerance<A>());
    }
  });
}

TEST_CASE("the kernels of a step refuse shapes that do not fit") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto step = step_on(run);
    const auto matrix = run.template output<float>(rows_of_step, 4), few = run.template output<float>(2, 4);
    const auto weight = run.template output<float>(4, 9);
    CHECK_THROWS_AS((kernels::decode_embedding<Space, float>(run.stream(), step, {}, matrix, {}, few, {})),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::causal_convolution_step<Space, float>(
                        run.stream(), step, kernels::columns_of<float, Space>(matrix), weight, {}, {},
                        kernels::columns_of<float, Space>(matrix))),
                    ConfigurationError);
    CHECK_THROWS_AS(
        (kernels::state_space_step<Space, float>(run.stream(), step, {1, 1, 1, 1, 1}, {}, {}, {})),
        ConfigurationError);
  });
}
