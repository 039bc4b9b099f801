// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/philox.hpp>
#include <encore/kernels/types.hpp>

/// The router of a mixture of experts: from the logits of N tokens over E experts to the K experts of each
/// token, their weights, the losses that keep the load even, and back. Counts and totals stay on the device.
/// No function depends on how many tokens an expert gets.
namespace encore::kernels {

/// softmax: over all experts, then the largest are taken (Mixtral, Qwen3). softmax_of_largest: over the
/// chosen experts only (GPT-OSS). sigmoid: each expert on its own (DeepSeek-V3).
enum class RouterScore { softmax, softmax_of_largest, sigmoid };

struct RouterRules {
  RouterScore score = RouterScore::softmax;
  std::int64_t topk = 1;
  bool renormalize = false;      ///< the chosen weights are divided by their sum + 1e-20
  std::int64_t groups = 1;       ///< of neighbouring experts, all of one size
  std::int64_t topk_groups = 1;  ///< groups that a token may choose from
  double scale = 1;              ///< of the weights, after all else
};

/// The experts of each token, best first, and their weights.
/// An expert's rank is its score plus its selection bias (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024,
/// section 2.1.2); of equal ones the lower index comes first, and NaN comes before all else, so that it stays
/// visible. With groups only the best topk_groups of them take part; a group counts by its largest rank, with
/// sigmoid scores or a bias by the sum of its two largest.
/// logits [N, E]; selection_bias [E] or empty; live [N] or empty: a token with 0 there is padding and gets no
/// expert, weight 0 and log_sum_exp 0. weights [N, K]; experts [N, K], -1 for none; log_sum_exp [N] of all
/// logits.
/// Throws ConfigurationError if the rules or shapes do not fit. May be captured.
template <class Space, class A>
void router_forward(Stream<Space>& stream, const RouterRules& rules, Matrix<const A, Space> logits,
                    Vector<const A, Space> selection_bias, Vector<const std::int32_t, Space> live,
                    Matrix<A, Space> weights, Matrix<std::int32_t, Space> experts,
                    Vector<A, Space> log_sum_exp);

/// Rows of the workspace of router_statistics.
std::int64_t router_workspace_rows(std::int64_t tokens);

/// Length of the totals that router_statistics writes: live tokens, sum of log_sum_exp^2 over them.
std::int64_t router_total_count();

/// What a microbatch's losses depend on. tokens_of_expert[e] = (token, k) pairs routed to e.
/// probability_sums[e] = sum over live tokens of softmax(logits)[e]; with sigmoid scores of sigmoid[e] / (sum
/// of sigmoids + 1e-20).
/// logits [N, E], log_sum_exp [N] and experts [N, K] as router_forward left them; live as there; both results
/// [E]; totals [router_total_count()]; workspace [router_workspace_rows(N), E]. May be captured.
template <class Space, class A>
void router_statistics(Stream<Space>& stream, const RouterRules& rules, Matrix<const A, Space> logits,
                       Vector<const A, Space> log_sum_exp, Matrix<const std::int32_t, Space> experts,
                       Vector<const std::int32_t, Space> live, Vector<std::int32_t, Space> tokens_of_expert,
                       Vector<A, Space> probability_sums, Vector<double, Space> totals,
                       Matrix<A, Space> workspace);

/// *balance_loss (+)= factor * E / (K n^2) * sum over e of tokens_of_expert[e] * probability_sums[e], n live
/// tokens (Fedus, Zoph and Shazeer, "Switch Transformers", 2021, equations 4 to 6): 1 when the load is even.
/// *z_loss (+)= factor * mean of log_sum_exp^2 (Zoph et al., "ST-MoE", 2022, equation 5). Both without their
/// coefficients, and 0 where no token is live. Either may be nullptr. Arguments as router_statistics left
/// them.
/// May be captured.
template <class Space, class A>
void router_losses(Stream<Space>& stream, const RouterRules& rules,
                   Vector<const std::int32_t, Space> tokens_of_expert,
                   Vector<const A, Space> probability_sums, Vector<const double, Space> totals, double factor,
                   double* balance_loss, double* z_loss, bool accumulate);

/// logits_gradient of the loss that reaches the weights, plus factor * *balance_coefficient * balance loss
/// (whose token counts are constants) plus factor * *z_coefficient * z loss. Zero for padding tokens. The
/// choice of experts has no gradient.
/// logits [N, E], log_sum_exp [N], experts [N, K] as in router_forward; weight_gradient [N, K];
/// tokens_of_expert [E] and totals as router_statistics left them; the coefficients on the device, either
/// nullptr for 0 (both: then tokens_of_expert and totals may be empty); logits_gradient [N, E]. T is the type
/// of the gradient, which the router's products read. May be captured.
template <class Space, class T>
void router_backward(Stream<Space>& stream, const RouterRules& rules,
                     Matrix<const Accumulator<T>, Space> logits,
                     Vector<const Accumulator<T>, Space> log_sum_exp,
                     Matrix<const std::int32_t, Space> experts, Vector<const std::int32_t, Space> live,
                     Matrix<const Accumulator<T>, Space> weight_gradient,
                     Vector<const std::int32_t, Space> tokens_of_expert, Vector<const double, Space> totals,
                     const double* balance_coefficient, const double* z_coefficient, double factor,
                     Matrix<T, Space> logits_gradient);

/// output = input * u, u uniform in [1 - epsilon, 1 + epsilon) per element, drawn as random_uniform(*state,
/// segment, element). The gradient is the same product of the output's gradient, by a call with the same
/// state and segment.
/// Both [N, hidden], may be the same. `epsilon` and `state` are device addresses. May be captured.
template <class Space, class T>
void router_jitter(Stream<Space>& stream, Matrix<const T, Space> input, Matrix<T, Space> output,
                   const double* epsilon, const backend::RandomState* state, std::uint32_t segment);

/// counts[e] = tokens_of_expert[e], or += if `accumulate`: a step's sum over its microbatches. Both [E]. May
/// be captured.
template <class Space>
void accumulate_counts(Stream<Space>& stream, Vector<const std::int32_t, Space> tokens_of_expert,
                       Vector<std::int32_t, Space> counts, bool accumulate);

/// bias[l, e] += *rate * sign(mean of counts[l, .] - counts[l, e]) (Wang et al., "Auxiliary-Loss-Free Load
/// Balancing Strategy for Mixture-of-Experts", 2024). Nothing changes when the step is skipped by the rule of
/// AdamwScalars: *skip_above > 0 and *gradient_norm is above it or not finite (both may be nullptr: never skipped),
/// or *hold > 0 (may be nullptr).
/// bias [layers, E], counts [layers, E] over the whole step; the scalars on the device. May be captured.
template <class Space, class A>
void expert_bias_update(Stream<Space>& stream, Matrix<const std::int32_t, Space> counts, const double* rate,
                        const double* gradient_norm, const double* skip_above, const double* hold,
                        Matrix<A, Space> bias);

}  // namespace encore::kernels
