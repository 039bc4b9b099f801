// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// The sinks [heads] in the type that attention takes them in. May be captured.
template <class Space, class T>
void attention_sinks_forward(Stream<Space>& stream, Vector<const T, Space> sinks,
                             Vector<Accumulator<T>, Space> result);

/// Rows of `heads` entries that the backward pass needs as its workspace.
std::int64_t attention_sinks_workspace_rows(std::int64_t tokens);

/// gradient [heads] = -sum over tokens of exp(sink - log_sum_exp) * (output . output_gradient): a sink takes its share
/// of the softmax from the values. output and output_gradient [batch * sequence, heads * head_dim], log_sum_exp [batch
/// * heads, sequence] as attention leaves it; set, or added to if `accumulate`. May be captured.
template <class Space, class T, class G>
void attention_sinks_backward(Stream<Space>& stream, Vector<const T, Space> sinks,
                              Matrix<const T, Space> output, Matrix<const T, Space> output_gradient,
                              Matrix<const Accumulator<T>, Space> log_sum_exp, Vector<G, Space> gradient,
                              Matrix<Accumulator<T>, Space> workspace, bool accumulate);

}  // namespace encore::kernels
