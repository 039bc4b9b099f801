// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stack_builder.hpp"

#include <encore/kernels/head_normalization.hpp>

#include <algorithm>
#include <cmath>

namespace encore::model {

/// What the attention segments' bodies need to know of the model.
struct AttentionGeometry {
  backend::AttentionShape shape;
  bool rotary;
  bool normalizes;  ///< each head's query and key
  kernels::RopeStyle style;
  double epsilon;
  bool drops_attention;
  const char* random;  ///< stream of its dropout

  std::int64_t row() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }
  std::int64_t rotated_row() const { return (shape.heads + shape.kv_heads) * shape.head_dim; }

  /// Queries, keys and values lie side by side in each token's row.
  template <class T>
  backend::HeadsOperand<T> in_projected(T* data, std::int64_t first_head) const {
    return {data + first_head * shape.head_dim, shape.tokens * row(), row(), shape.head_dim};
  }
  /// Queries and keys, without the values.
  template <class T>
  backend::HeadsOperand<T> in_rotated(T* data, std::int64_t first_head) const {
    return {data + first_head * shape.head_dim, shape.tokens * rotated_row(), rotated_row(), shape.head_dim};
  }
  template <class T>
  backend::HeadsOperand<T> in_context(T* data) const {
    const std::int64_t width = shape.heads * shape.head_dim;
    return {data, shape.tokens * width, width, shape.head_dim};
  }
};

template <class Space, class T, class G>
AttentionGeometry geometry_of(const StackBuilder<Space, T, G>& builder, std::int64_t window) {
  const ModelConfiguration& model = builder.local;
  return {{builder.shape.sequences, builder.shape.tokens, model.heads, model.kv_heads, model.head_dim,
           static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.head_dim))), window,
           model.attention_sinks},
          has_rotation(model),
          model.query_key_norm,
          model.position == Position::rope_interleaved ? kernels::RopeStyle::interleaved
                                                       : kernels::RopeStyle::half_split,
          model.norm_epsilon,
          builder.drops_attention(),
          builder.attention_random()};
}

/// What stands between the projection and the attention: QK norm and rotation, either, or nothing.
template <class Space, class T>
struct HeadOperations {
  using A = Accumulator<T>;
  using Table = backend::Matrix<const A, Space>;

  const AttentionGeometry& geometry;
  BufferId cosine, sine;

  /// What of the rotation the attention does by itself: nothing, the gradients' or, of inputs, all of it.
  backend::AttentionRotation<A> within_attention(Execution<Space>& x, const AttentionBuffers& b,
                                                 const backend::AttentionDropout& dropout) const {
    const backend::Attention<Space>& attention = x.device().attention();
    if (!geometry.rotary || b.rotated || !attention.template rotates_gradients<T>(geometry.shape, dropout))
      return {};
    return {table(x, cosine).data(), table(x, sine).data(), geometry.style == kernels::RopeStyle::interleaved,
            attention.template rotates_inputs<T>(geometry.shape, dropout)};
  }

  void forward(Execution<Space>& x, const AttentionBuffers& b,
               const backend::AttentionRotation<A>& within_attention) const {
    if (b.rotated) {
      kernels::head_norm_forward<Space, T>(x.stream(), heads(), x.template pointer<const T>(b.projected),
                                           x.template vector<const T>(b.query_norm->value),
                                           x.template vector<const T>(b.key_norm->value), geometry.style,
                                           table(x, cosine), table(x, sine), x.template matrix<T>(*b.rotated),
                                           geometry.epsilon);
    } else if (geometry.rotary && !within_attention.of_inputs) {
      rotate(x, b.projected, false);
    }
  }

  /// `gradient` is that of the projection once this is done.
  template <class G>
  void backward(Execution<Space>& x, const AttentionBuffers& b, BufferId gradient,
                std::optional<BufferId> workspace, bool accumulate,
                const backend::AttentionRotation<A>& within_attention) const {
    if (b.rotated) {
      kernels::head_norm_backward<Space, T, G>(
          x.stream(), heads(), x.template pointer<const T>(b.projected),
          x.template vector<const T>(b.query_norm->value), x.template vector<const T>(b.key_norm->value),
          geometry.style, table(x, cosine), table(x, sine), x.template pointer<T>(gradient),
          x.template vector<G>(*b.query_norm->gradient), x.template vector<G>(*b.key_norm->gradient),
          x.template matrix<A>(workspace.value()), geometry.epsilon, accumulate);
    } else if (geometry.rotary && within_attention.cosine == nullptr) {
      rotate(x, gradient, true);
    }
  }

 private:
  kernels::ProjectedHeads heads() const {
    const backend::AttentionShape& shape = geometry.shape;
    return {shape.batch * shape.tokens,
            shape.tokens,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            geometry.row()};
  }
  Table table(Execution<Space>& x, BufferId id) const {
    return geometry.rotary ? x.template matrix<const A>(id) : Table();
  }

  /// Rotates (or rotates back) the queries and keys in place.
  void rotate(Execution<Space>& x, BufferId projected, bool inverse) const {
    kernels::rope<Space, T>(x.stream(), geometry.style, table(x, cosine), table(x, sine),
                            x.template pointer<T>(projected), geometry.shape.batch * geometry.shape.tokens,
                            geometry.shape.tokens, geometry.shape.heads + geometry.shape.kv_heads,
                            geometry.shape.head_dim, geometry.row(), inverse);
  }
};

/// Queries, keys and values of the attention, where the head operations left them.
template <class T>
struct AttentionInputs {
  backend::HeadsOperand<const T> query, key, value;
};

template <class T, class Space>
AttentionInputs<T> inputs_of(Execution<Space>& x, const AttentionGeometry& geometry,
                             const AttentionBuffers& b) {
  const T* projected = x.template pointer<const T>(b.projected);
  const std::int64_t keys = geometry.shape.heads, values = keys + geometry.shape.kv_heads;
  const auto value = geometry.in_projected(projected, values);
  if (!b.rotated) return {geometry.in_projected(projected, 0), geometry.in_projected(projected, keys), value};
  const T* rotated = x.template pointer<const T>(*b.rotated);
  return {geometry.in_rotated(rotated, 0), geometry.in_rotated(rotated, keys), value};
}

template <class Space>
backend::AttentionDropout dropout_of(Execution<Space>& x, const AttentionGeometry& geometry,
                                     BufferId probability, std::uint32_t segment) {
  if (!geometry.drops_attention) return {};
  return {x.template pointer<const double>(probability), x.device().random().state(geometry.random), segment};
}

}  // namespace encore::model
