// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/router.hpp>

#include "mathematics.hpp"
#include "shapes.hpp"

namespace encore::kernels::impl {

/// A team of one warp routes a token: its reductions need no barrier.
inline constexpr int router_threads = 32;

/// Added to sums of scores that are divided by, as DeepSeek-V3's router does.
template <class A>
inline constexpr A score_floor = A(1e-20);

template <class A>
KOKKOS_INLINE_FUNCTION A router_score(bool sigmoid, A logit, A log_sum_exp) {
  return sigmoid ? logistic(logit) : exponential(logit - log_sum_exp);
}

/// Softmax over the chosen experts is softmax over all of them, renormalised.
inline bool renormalizes(const RouterRules& rules) {
  return rules.renormalize || rules.score == RouterScore::softmax_of_largest;
}

inline void require_rules(const RouterRules& rules, std::int64_t experts) {
  require_shape(rules.groups >= 1 && experts % rules.groups == 0,
                "router: the number of experts must be a multiple of the number of groups");
  require_shape(rules.topk_groups >= 1 && rules.topk_groups <= rules.groups,
                "router: topk_groups must lie in [1, groups]");
  require_shape(rules.topk >= 1 && rules.topk <= experts / rules.groups * rules.topk_groups,
                "router: topk must lie in [1, experts of topk_groups groups]");
}

}  // namespace encore::kernels::impl
