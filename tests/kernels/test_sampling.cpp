// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/sampling.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

#include <algorithm>
#include <numeric>

using namespace encore;
using namespace encore::tests;
using kernels::SamplingSettings;

namespace {

/// Settings as the numbers that lie on the device.
template <class Space>
const SamplingSettings* on_device(KernelRun<Space>& run, const SamplingSettings& settings) {
  std::vector<std::uint8_t> bytes(sizeof settings);
  std::memcpy(bytes.data(), &settings, sizeof settings);
  return reinterpret_cast<const SamplingSettings*>(run.template input<std::uint8_t>(bytes).data());
}

struct Draws {
  std::int64_t sequences, vocabulary;
  std::int32_t position = 0;  ///< of the last token of all sequences
};

/// The token that each sequence gets; all have the same logits unless there are logits for each.
template <class Space>
std::vector<std::int32_t> draw(HostAgreement& agreement, const std::string& name, const Draws& draws,
                               const std::vector<double>& logits, const SamplingSettings& settings) {
  const auto [sequences, vocabulary, position] = draws;
  const std::int64_t capacity = position + 2;
  std::vector<double> all = logits;
  while (std::ssize(all) < sequences * vocabulary) all.insert(all.end(), logits.begin(), logits.end());
  KernelRun<Space> run;
  const kernels::DecodeRows<Space> rows{
      run.template input<std::int32_t>(std::vector<std::int32_t>(sequences, position)),
      run.template input<std::int32_t>(std::vector<std::int32_t>(sequences, 1)), 1};
  const auto values = run.template input<float>(all, vocabulary);
  const auto tokens = run.template output<std::int32_t>(sequences, capacity);
  const std::int64_t elements = kernels::sampling_workspace(sequences, vocabulary);
  const backend::Vector<std::uint64_t, Space> workspace(
      run.template workspace<std::uint64_t>(elements, 1).data(), static_cast<std::size_t>(elements));
  const auto* of_draw = on_device(run, settings);
  agreement.add<Space>(name, run.execute([&] {
    kernels::sample_tokens<Space>(run.stream(), rows, values, of_draw, tokens, workspace);
  }));
  std::vector<std::int32_t> drawn;
  const auto result = run.values(tokens);
  bool others_stand = true;
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t p = 0; p <= position; ++p)
      others_stand = others_stand && result[s * capacity + p] == -1;
    drawn.push_back(static_cast<std::int32_t>(result[s * capacity + position + 1]));
  }
  CHECK(others_stand);
  return drawn;
}

std::int32_t largest_of(const std::vector<double>& logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Probabilities of the tokens that may be drawn; 0 for the others.
std::vector<double> probabilities(const std::vector<double>& logits, const SamplingSettings& settings) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (settings.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(settings.top_k)));
  double sum = 0;
  std::vector<double> weights(logits.size(), 0.0);
  for (const std::size_t token : order)
    sum += weights[token] = std::exp((logits[token] - logits[order[0]]) / settings.temperature);
  double so_far = 0, kept = 0;
  for (const std::size_t token : order) {
    if (so_far >= settings.top_p * sum) {
      weights[token] = 0;
      continue;
    }
    so_far += weights[token];
    kept = so_far;
  }
  for (double& weight : weights) weight /= kept;
  return weights;
}

}  // namespace

TEST_CASE("greedy sampling takes the largest logit, and of equal ones the lowest token") {
  HostAgreement agreement;
  for_each_space([&]<class Space>(Types<Space>) {
    for (const std::int64_t vocabulary : {1, 2, 5, 64, 257, 2049, 50257}) {
      CAPTURE(vocabulary);
      std::vector<double> logits = normal_values<float>(3 * vocabulary, 1);
      // The second sequence has all equal, the third its largest twice.
      std::fill(logits.begin() + vocabulary, logits.begin() + 2 * vocabulary, -1.5);
      logits[2 * vocabulary + vocabulary / 2] = logits[3 * vocabulary - 1] = 50;
      const auto drawn =
          draw<Space>(agreement, std::to_string(vocabulary), {3, vocabulary}, logits, {0, 0.5, 7, 3});
      const std::vector<double> row(logits.begin(), logits.begin() + vocabulary);
      CHECK(drawn ==
            std::vector<std::int32_t>{largest_of(row), 0, static_cast<std::int32_t>(vocabulary / 2)});
    }
  });
}

TEST_CASE("top-k 1, a tiny top-p and a low temperature are greedy whatever the seed") {
  HostAgreement agreement;
  for_each_space([&]<class Space>(Types<Space>) {
    for (const std::int64_t vocabulary : {3, 300, 5000}) {
      std::vector<double> logits = normal_values<float>(vocabulary, 2);
      const std::int32_t best = largest_of(logits);
      logits[vocabulary - 1] = logits[best];  // a tie, which the lower token wins
      for (const SamplingSettings& settings : {SamplingSettings{5, 1, 1, 1}, SamplingSettings{5, 1e-6, 0, 2},
                                               SamplingSettings{1, 0.001, 2, 3}}) {
        const std::string name = std::to_string(vocabulary) + " " + std::to_string(settings.seed);
        INFO(name);
        CHECK(draw<Space>(agreement, name, {4, vocabulary}, logits, settings) ==
              std::vector<std::int32_t>(4, best));
      }
    }
  });
}

TEST_CASE("tokens are drawn with their probabilities, cut exactly by top-k and top-p") {
  HostAgreement agreement;
  for_each_space([&]<class Space>(Types<Space>) {
    std::vector<double> logits = normal_values<float>(37, 3, 0, 1.5);
    logits[5] = logits[20] = logits[30] = 1.25;  // ties, through which cuts may go
    for (const SamplingSettings& settings :
         {SamplingSettings{1, 1, 0, 1}, SamplingSettings{0.7, 1, 0, 2}, SamplingSettings{1, 1, 6, 3},
          SamplingSettings{1.3, 0.8, 0, 4}, SamplingSettings{1, 0.9, 10, 5}, SamplingSettings{2, 0.3, 5, 6},
          SamplingSettings{1, 1, 37, 7}, SamplingSettings{1, 0.999999, 36, 8}}) {
      CAPTURE(settings.seed);
      const std::vector<double> expected = probabilities(logits, settings);
      std::vector<double> counts(logits.size(), 0.0);
      constexpr std::int64_t sequences = 2000;
      constexpr int positions = 3;
      for (int position = 0; position < positions; ++position)
        for (const std::int32_t token :
             draw<Space>(agreement, std::to_string(settings.seed) + "@" + std::to_string(position),
                         {sequences, 37, position}, logits, settings)) {
          REQUIRE(token >= 0);
          REQUIRE(token < 37);
          ++counts[token];
        }
      // Chi-square over the tokens with enough expected draws, the rest together.
      double statistic = 0, rest_expected = 0, rest_counted = 0;
      int cells = 0;
      constexpr double total = static_cast<double>(sequences * positions);
      for (std::size_t token = 0; token < counts.size(); ++token) {
        if (expected[token] == 0) CHECK(counts[token] == 0);
        if (expected[token] * total >= 10) {
          statistic += std::pow(counts[token] - expected[token] * total, 2) / (expected[token] * total);
          ++cells;
        } else {
          rest_expected += expected[token] * total;
          rest_counted += counts[token];
        }
      }
      if (rest_expected > 5) {
        statistic += std::pow(rest_counted - rest_expected, 2) / rest_expected;
        ++cells;
      }
      // Mean of the statistic cells - 1, variance twice that: four standard deviations.
      const double freedom = cells - 1;
      CHECK(cells >= 2);
      CHECK(statistic < freedom + 4 * std::sqrt(2 * freedom));
    }
  });
}

TEST_CASE("a large vocabulary is cut exactly too") {
  HostAgreement agreement;
  for_each_space([&]<class Space>(Types<Space>) {
    constexpr std::int64_t vocabulary = 50257;
    const std::vector<double> logits = normal_values<float>(vocabulary, 5, 0, 3);
    for (const SamplingSettings& settings : {SamplingSettings{1, 1, 50, 1}, SamplingSettings{1, 0.5, 0, 2}}) {
      CAPTURE(settings.seed);
      const std::vector<double> expected = probabilities(logits, settings);
      std::vector<std::int32_t> drawn =
          draw<Space>(agreement, std::to_string(settings.seed), {64, vocabulary}, logits, settings);
      for (const std::int32_t token : drawn) CHECK(expected[token] > 0);
      std::ranges::sort(drawn);
      CHECK(std::unique(drawn.begin(), drawn.end()) - drawn.begin() > 10);
    }
  });
}

TEST_CASE("a sequence without tokens, or without room, gets none") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const std::vector<std::int32_t> first{1, 2, 1}, count{1, 1, 0};
    const kernels::DecodeRows<Space> rows{run.template input<std::int32_t>(first),
                                          run.template input<std::int32_t>(count), 1};
    const auto logits = run.template input<float>(normal_values<float>(3 * 8, 1), 8);
    const auto tokens = run.template output<std::int32_t>(3, 3);
    const std::int64_t elements = kernels::sampling_workspace(3, 8);
    const backend::Vector<std::uint64_t, Space> workspace(
        run.template workspace<std::uint64_t>(elements, 1).data(), static_cast<std::size_t>(elements));
    const auto* settings = on_device(run, {1, 0.5, 3, 1});
    run.execute(
        [&] { kernels::sample_tokens<Space>(run.stream(), rows, logits, settings, tokens, workspace); });
    const auto result = run.values(tokens);
    CHECK(result[2] >= 0);
    for (std::size_t i = 0; i < result.size(); ++i)
      if (i != 2) CHECK(result[i] == -1);
    CHECK_THROWS_AS((kernels::sample_tokens<Space>(run.stream(), rows, logits, settings, tokens, {})),
                    ConfigurationError);
  });
}
