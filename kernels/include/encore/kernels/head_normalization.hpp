// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/rope.hpp>
#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// The heads of a fused projection: each of `tokens` rows, `row_stride` entries apart, begins with query_heads and
/// then key_heads heads of head_dim entries. Row t stands at position t % sequence.
struct ProjectedHeads {
  std::int64_t tokens;
  std::int64_t sequence;
  std::int64_t query_heads;
  std::int64_t key_heads;
  std::int64_t head_dim;  ///< even
  std::int64_t row_stride;
};

/// result = rotate(x / sqrt(mean(x^2) + epsilon) * weight) for each head x: "QK norm" (Henry et al., 2020), as in
/// Qwen3, and the rotation of rope() in one pass. projected as `heads` says; query_weight and key_weight [head_dim];
/// cosine and sine as for rope(), or both empty for no rotation; result [tokens, (query_heads + key_heads) *
/// head_dim]. May be captured.
template <class Space, class T>
void head_norm_forward(Stream<Space>& stream, const ProjectedHeads& heads, const T* projected,
                       Vector<const T, Space> query_weight, Vector<const T, Space> key_weight,
                       RopeStyle style, Matrix<const Accumulator<T>, Space> cosine,
                       Matrix<const Accumulator<T>, Space> sine, Matrix<T, Space> result, double epsilon);

/// Rows of `head_dim` entries that the backward pass needs as its workspace.
std::int64_t head_norm_workspace_rows(std::int64_t tokens);

/// `gradient`, laid out like `projected`, holds the gradient of the result's heads and becomes that of the projected
/// ones; the rest of its rows stands. The weights' gradients [head_dim] are set, or added to if `accumulate`. Nothing
/// but `projected` need be kept from forward. May be captured.
template <class Space, class T, class G>
void head_norm_backward(Stream<Space>& stream, const ProjectedHeads& heads, const T* projected,
                        Vector<const T, Space> query_weight, Vector<const T, Space> key_weight,
                        RopeStyle style, Matrix<const Accumulator<T>, Space> cosine,
                        Matrix<const Accumulator<T>, Space> sine, T* gradient,
                        Vector<G, Space> query_weight_gradient, Vector<G, Space> key_weight_gradient,
                        Matrix<Accumulator<T>, Space> workspace, double epsilon, bool accumulate);

}  // namespace encore::kernels
