// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/router.hpp>

#include "random_values.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace encore::tests {

/// Rules and sizes of a router, its inputs, and what it computes, in double and token by token.
struct RouterProblem {
  std::string name;
  std::int64_t tokens, experts;
  kernels::RouterRules rules;
  bool biased = false;
  bool padded = false;

  std::vector<double> logits{}, bias{};
  std::vector<std::int32_t> live{};

  /// Rounds what it draws to T. Every third token is padding, and the first.
  template <class T>
  void draw(unsigned seed) {
    logits = normal_values<T>(tokens * experts, seed, 0.2, 1.5);
    if (biased) bias = normal_values<T>(experts, seed + 1, 0, 0.2);
    if (!padded) return;
    live.resize(tokens);
    for (std::int64_t t = 0; t < tokens; ++t) live[t] = t % 3 == 0 ? 0 : 1;
  }

  bool is_live(std::int64_t token) const { return live.empty() || live[token] != 0; }
  const double* row(std::int64_t token) const { return logits.data() + token * experts; }
  bool is_sigmoid() const { return rules.score == kernels::RouterScore::sigmoid; }

  double log_sum_exp(std::int64_t token) const {
    const double* from = row(token);
    const double most = *std::max_element(from, from + experts);
    double sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(from[e] - most);
    return most + std::log(sum);
  }

  /// Softmax over all experts, or sigmoids.
  std::vector<double> scores(std::int64_t token) const {
    std::vector<double> result(experts);
    const double log_sum = log_sum_exp(token);
    for (std::int64_t e = 0; e < experts; ++e)
      result[e] = is_sigmoid() ? 1 / (1 + std::exp(-row(token)[e])) : std::exp(row(token)[e] - log_sum);
    return result;
  }

  /// What the balance loss sums: a distribution over all experts.
  std::vector<double> probabilities(std::int64_t token) const {
    std::vector<double> result = scores(token);
    if (!is_sigmoid()) return result;
    const double sum = std::accumulate(result.begin(), result.end(), 1e-20);
    for (double& value : result) value /= sum;
    return result;
  }

  /// Scores with the bias, minus infinity in the groups that are out.
  std::vector<double> ranks(std::int64_t token) const {
    std::vector<double> rank = scores(token);
    if (biased)
      for (std::int64_t e = 0; e < experts; ++e) rank[e] += bias[e];
    const std::int64_t size = experts / rules.groups;
    std::vector<double> group_rank(rules.groups);
    for (std::int64_t g = 0; g < rules.groups; ++g) {
      std::vector<double> members(rank.begin() + g * size, rank.begin() + (g + 1) * size);
      std::sort(members.rbegin(), members.rend());
      group_rank[g] = members[0] + ((is_sigmoid() || biased) && size > 1 ? members[1] : 0.0);
    }
    std::vector<double> best = group_rank;
    std::sort(best.rbegin(), best.rend());
    for (std::int64_t e = 0; e < experts; ++e)
      if (group_rank[e / size] < best[rules.topk_groups - 1]) rank[e] = -INFINITY;
    return rank;
  }

  /// Weights of chosen experts.
  std::vector<double> weights(std::int64_t token, const std::vector<std::int32_t>& chosen) const {
    std::vector<double> result;
    if (rules.score == kernels::RouterScore::softmax_of_largest) {
      for (const std::int32_t e : chosen) result.push_back(std::exp(row(token)[e]));
      const double sum = std::accumulate(result.begin(), result.end(), 0.0);
      for (double& weight : result) weight *= rules.scale / sum;
      return result;
    }
    const std::vector<double> score = scores(token);
    for (const std::int32_t e : chosen) result.push_back(score[e]);
    const double sum = rules.renormalize ? std::accumulate(result.begin(), result.end(), 1e-20) : 1;
    for (double& weight : result) weight *= rules.scale / sum;
    return result;
  }
};

/// The routers of Mixtral, Qwen3, GPT-OSS, DeepSeek-V3 and V2, and sizes at the edges.
inline std::vector<RouterProblem> router_problems() {
  using kernels::RouterRules, kernels::RouterScore;
  std::vector<RouterProblem> all;
  all.push_back({"one expert", 3, 1, RouterRules{RouterScore::softmax, 1}});
  all.push_back({"all experts", 5, 3, RouterRules{RouterScore::softmax, 3, true}});
  all.push_back({"one token", 1, 16, RouterRules{RouterScore::softmax, 2, true}});
  all.push_back({"mixtral", 70, 8, RouterRules{RouterScore::softmax, 2, true}});
  all.push_back({"qwen3", 33, 128, RouterRules{RouterScore::softmax, 8, true}, false, true});
  all.push_back({"gpt-oss", 40, 32, RouterRules{RouterScore::softmax_of_largest, 4}});
  all.push_back({"deepseek-v3", 37, 256, RouterRules{RouterScore::sigmoid, 8, true, 8, 4, 2.5}, true, true});
  all.push_back({"deepseek-v2", 20, 160, RouterRules{RouterScore::softmax, 6, false, 8, 3, 16}});
  all.push_back({"sigmoid", 9, 24, RouterRules{RouterScore::sigmoid, 3, false, 4, 2, 0.5}, false, true});
  all.push_back({"wide", 7, 512, RouterRules{RouterScore::sigmoid, 64, true}, true});
  all.push_back({"odd", 11, 600, RouterRules{RouterScore::softmax, 33}, true});
  return all;
}

}  // namespace encore::tests
