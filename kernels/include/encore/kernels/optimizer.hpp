// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// How many partial sums a gradient norm is formed from, whatever the number of elements.
std::int64_t squared_norm_partial_count();

/// partials[k] = sum of squares of the k-th share of the gradients. partials [squared_norm_partial_count()].
/// Partials of several arrays may lie one behind the other: adamw_prepare takes them all.
template <class Space, class G>
void squared_norm_partials(Stream<Space>& stream, Vector<const G, Space> gradients,
                           Vector<double, Space> partials);

/// *sum = sum of partials, 0 of none. May be captured.
template <class Space>
void sum_partials(Stream<Space>& stream, Vector<const double, Space> partials, double* sum);

/// *norm = |*gradient_scale| * sqrt(sum of partials), which are those of adamw. partials [any number > 0]; sums
/// [gradient_norm_sum_count()] are a workspace.
template <class Space, class A>
void gradient_norm(Stream<Space>& stream, Vector<const A, Space> partials, const double* gradient_scale,
                   Vector<double, Space> sums, double* norm);
std::int64_t gradient_norm_sum_count();

/// Device addresses of what an AdamW step depends on. `clip` 0 leaves gradients unclipped; `step` counts from
/// 1; gradients count `gradient_scale` times (1 / microbatches, 1 / loss scale). A norm above `skip_above`, or one
/// that is not finite, leaves weights and moments as they are; 0: no norm does. So does any *hold above 0; nullptr:
/// never. The decision is the device's.
struct AdamwScalars {
  const double* learning_rate;
  const double* weight_decay;
  const double* beta1;
  const double* beta2;
  const double* epsilon;
  const double* clip;
  const double* step;
  const double* gradient_scale;
  const double* skip_above;
  const double* hold = nullptr;
};

/// Length of the factors that adamw_prepare hands to adamw.
std::int64_t adamw_factor_count();

/// *gradient_norm = gradient_scale * sqrt(sum of partials), and the factors of the step, among them clipping
/// by min(1, clip / (norm + 1e-6)) as torch.nn.utils.clip_grad_norm_ does. A norm that is not finite is
/// reported as it is; unless steps are skipped the weights become NaN, as with torch.
/// partials [any number > 0]; factors [adamw_factor_count()], A = Accumulator of the weight type.
/// Without partials nothing is clipped or skipped, `gradient_norm` is not touched and may be nullptr, and the factors
/// depend on no gradient.
template <class Space, class A>
void adamw_prepare(Stream<Space>& stream, Vector<const double, Space> partials, AdamwScalars scalars,
                   double* gradient_norm, Vector<A, Space> factors);

/// One step of decoupled weight decay (Loshchilov and Hutter, 2019) as torch.optim.AdamW takes it:
/// w *= 1 - lr * decay for the elements [0, decayed); m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2)
/// g^2; w -= lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + epsilon).
/// All [elements]; master (the weights in Accumulator<T>) may be empty, else it is what is updated and
/// `weights` is its rounded copy. S is the type of the moments.
/// partials may be empty; else they are [adamw_partial_count(elements)] and become sums of squares of the gradients,
/// which so need not be read again for their norm.
template <class Space, class T, class G, class S>
void adamw(Stream<Space>& stream, Vector<const G, Space> gradients,
           Vector<const Accumulator<T>, Space> factors, Vector<T, Space> weights,
           Vector<Accumulator<T>, Space> master, Vector<S, Space> first_moment,
           Vector<S, Space> second_moment, std::int64_t decayed, Vector<Accumulator<T>, Space> partials = {});
std::int64_t adamw_partial_count(std::int64_t elements);

}  // namespace encore::kernels
