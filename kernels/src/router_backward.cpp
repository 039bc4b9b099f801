// SPDX-License-Identifier: Apache-2.0
#include "router_rules.hpp"

namespace encore::kernels {

namespace {

/// With scores s, weights w = scale s / sum of the chosen s, or scale s, and upstream gradient g:
/// ds_k = scale / sum (g_k - sum of g s / sum), or scale g_k. Softmax: dl_e = s_e (ds_e - sum of ds s);
/// sigmoid: dl_e = s_e (1 - s_e) ds_e. The balance loss adds a ds_e of its own to all experts.
template <class T>
struct RouterBackward {
  using A = Accumulator<T>;

  const A* logits;
  const A* log_sum_exp;
  const std::int32_t* chosen;
  const std::int32_t* live;
  const A* weight_gradient;
  const std::int32_t* tokens_of_expert;
  const double* totals;
  const double* balance_coefficient;
  const double* z_coefficient;
  double factor;
  T* logits_gradient;
  std::int64_t experts, topk;
  A scale;
  bool sigmoid, renormalize;

  std::size_t scratch_bytes() const { return (experts + 2 * topk) * sizeof(A); }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t token = team.league_rank();
    T* result = logits_gradient + token * experts;
    if (live != nullptr && live[token] == 0) {
      team.for_each(experts, [=](std::int64_t e) { result[e] = static_cast<T>(A(0)); });
      return;
    }
    const A* row = logits + token * experts;
    const std::int32_t* expert = chosen + token * topk;
    A* gradients = team.template scratch<A>();
    A* scores = gradients + experts;
    A* score_gradients = scores + topk;
    all_experts(team, row, log_sum_exp[token], gradients,
                chosen_experts(team, token, row, expert, scores, score_gradients));
    team.barrier();
    const bool by_sigmoid = sigmoid;
    team.for_each(topk, [=](std::int64_t k) {
      if (expert[k] < 0) return;
      gradients[expert[k]] += score_gradients[k] * scores[k] * (by_sigmoid ? 1 - scores[k] : A(1));
    });
    team.barrier();
    team.for_each(experts, [=](std::int64_t e) { result[e] = static_cast<T>(gradients[e]); });
  }

 private:
  /// Scores of the chosen experts and the loss' gradients with respect to them; returns the sum of their
  /// products, which every logit of a softmax lowers.
  template <class Team>
  KOKKOS_FUNCTION A chosen_experts(const Team& team, std::int64_t token, const A* row,
                                   const std::int32_t* expert, A* scores, A* score_gradients) const {
    const A* upstream = weight_gradient + token * topk;
    const A log_sum = log_sum_exp[token];
    const bool by_sigmoid = sigmoid;
    team.for_each(topk, [=](std::int64_t k) {
      const bool is_routed = expert[k] >= 0;
      scores[k] = is_routed ? impl::router_score(by_sigmoid, row[expert[k]], log_sum) : A(0);
      score_gradients[k] = is_routed ? upstream[k] : A(0);
    });
    team.barrier();
    A sum(0), product(0);
    for (std::int64_t k = 0; k < topk; ++k) {
      sum += scores[k];
      product += scores[k] * score_gradients[k];
    }
    team.barrier();
    A slope = scale, offset(0);
    if (renormalize) {
      slope = scale / (sum + impl::score_floor<A>);
      offset = product / (sum + impl::score_floor<A>);
    }
    team.for_each(topk, [=](std::int64_t k) { score_gradients[k] = slope * (score_gradients[k] - offset); });
    return slope * (product - offset * sum);
  }

  /// The part of the gradient that does not depend on whether an expert was chosen.
  template <class Team>
  KOKKOS_FUNCTION void all_experts(const Team& team, const A* row, A log_sum, A* gradients,
                                   A chosen_product) const {
    const double live_tokens = totals == nullptr ? 1 : totals[0];
    const A z_slope =
        z_coefficient == nullptr ? A(0) : static_cast<A>(factor * *z_coefficient * 2 / live_tokens) * log_sum;
    const A balance = balance_coefficient == nullptr
                          ? A(0)
                          : static_cast<A>(factor * *balance_coefficient * static_cast<double>(experts) /
                                           (static_cast<double>(topk) * live_tokens * live_tokens));
    const bool balances = balance_coefficient != nullptr;
    const std::int32_t* counts = tokens_of_expert;
    const auto pull = [=](std::int64_t e) { return balances ? balance * static_cast<A>(counts[e]) : A(0); };
    if (sigmoid) {
      A sum(1), mean_pull(0);
      if (balances) {
        sum = team.template sum_over<A>(experts, [=](std::int64_t e) { return impl::logistic(row[e]); }) +
              impl::score_floor<A>;
        mean_pull = team.template sum_over<A>(experts, [=](std::int64_t e) {
          return pull(e) * impl::logistic(row[e]);
        }) / sum;
      }
      team.for_each(experts, [=](std::int64_t e) {
        const A score = impl::logistic(row[e]);
        gradients[e] =
            (pull(e) - mean_pull) / sum * score * (1 - score) + z_slope * impl::exponential(row[e] - log_sum);
      });
    } else {
      A mean_pull(0);
      if (balances)
        mean_pull = team.template sum_over<A>(
            experts, [=](std::int64_t e) { return pull(e) * impl::exponential(row[e] - log_sum); });
      const A common = z_slope - mean_pull - chosen_product;
      team.for_each(experts, [=](std::int64_t e) {
        gradients[e] = impl::exponential(row[e] - log_sum) * (pull(e) + common);
      });
    }
  }
};

}  // namespace

template <class Space, class T>
void router_backward(Stream<Space>& stream, const RouterRules& rules,
                     Matrix<const Accumulator<T>, Space> logits,
                     Vector<const Accumulator<T>, Space> log_sum_exp,
                     Matrix<const std::int32_t, Space> experts, Vector<const std::int32_t, Space> live,
                     Matrix<const Accumulator<T>, Space> weight_gradient,
                     Vector<const std::int32_t, Space> tokens_of_expert, Vector<const double, Space> totals,
                     const double* balance_coefficient, const double* z_coefficient, double factor,
                     Matrix<T, Space> logits_gradient) {
  const std::int64_t tokens = impl::rows_of(logits), count = impl::columns_of(logits);
  impl::require_rules(rules, count);
  impl::require_shape(impl::is_matrix(logits, tokens, count) && impl::is_vector(log_sum_exp, tokens) &&
                          impl::is_matrix(experts, tokens, rules.topk) &&
                          impl::is_matrix(weight_gradient, tokens, rules.topk) &&
                          (impl::is_empty(live) || impl::is_vector(live, tokens)) &&
                          impl::is_matrix(logits_gradient, tokens, count),
                      "router_backward: logits and their gradient must be [tokens, experts], experts and "
                      "weight_gradient [tokens, topk], log_sum_exp [tokens], live [tokens] or empty");
  impl::require_shape(
      (balance_coefficient == nullptr || impl::is_vector(tokens_of_expert, count)) &&
          ((balance_coefficient == nullptr && z_coefficient == nullptr) ||
           impl::is_vector(totals, router_total_count())),
      "router_backward: a balance loss needs tokens_of_expert [experts], and either loss the totals");
  const RouterBackward<T> functor{logits.data(),
                                  log_sum_exp.data(),
                                  experts.data(),
                                  live.data(),
                                  weight_gradient.data(),
                                  tokens_of_expert.data(),
                                  totals.data(),
                                  balance_coefficient,
                                  z_coefficient,
                                  factor,
                                  logits_gradient.data(),
                                  count,
                                  rules.topk,
                                  static_cast<Accumulator<T>>(rules.scale),
                                  rules.score == RouterScore::sigmoid,
                                  impl::renormalizes(rules)};
  launch(stream, "router/backward",
         {backend::read(logits), backend::read(log_sum_exp), backend::read(experts), backend::read(live),
          backend::read(weight_gradient), backend::read(tokens_of_expert), backend::read(totals),
          backend::read(balance_coefficient, balance_coefficient == nullptr ? 0 : 1),
          backend::read(z_coefficient, z_coefficient == nullptr ? 0 : 1), backend::write(logits_gradient)},
         backend::Teams<impl::router_threads>{tokens, functor.scratch_bytes()}, functor);
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                        \
  template void router_backward<SPACE, T>(                                                                  \
      Stream<SPACE>&, const RouterRules&, Matrix<const Accumulator<T>, SPACE>,                              \
      Vector<const Accumulator<T>, SPACE>, Matrix<const std::int32_t, SPACE>,                               \
      Vector<const std::int32_t, SPACE>, Matrix<const Accumulator<T>, SPACE>,                               \
      Vector<const std::int32_t, SPACE>, Vector<const double, SPACE>, const double*, const double*, double, \
      Matrix<T, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
