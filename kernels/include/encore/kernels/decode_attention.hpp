// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/decode.hpp>
#include <encore/kernels/rope.hpp>

namespace encore::kernels {

/// Keys and values of all tokens so far, each [sequences, capacity, kv_heads, head_dim].
struct DecodeAttentionShape {
  std::int64_t heads;       ///< of the queries
  std::int64_t kv_heads;    ///< divides heads; query head h reads key head h / (heads / kv_heads)
  std::int64_t head_dim;    ///< at most 256
  std::int64_t capacity;    ///< positions of a sequence
  double scale;             ///< of the scores, usually 1 / sqrt(head_dim)
  std::int64_t window = 0;  ///< positions that a query sees, its own among them; 0: all

  KOKKOS_FUNCTION std::int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
  KOKKOS_FUNCTION std::int64_t cached() const { return kv_heads * head_dim; }
};

/// Puts the keys and values of the step's tokens into the caches, and the queries into `queries`, keys and queries
/// rotated as rope() does, by the angles of their positions.
/// projected [rows, shape.row()]: queries, keys and values side by side; normalized [rows, (heads + kv_heads) *
/// head_dim]: the queries and keys to be taken instead, or empty; cosine and sine [>= capacity, head_dim / 2], or both
/// empty for no rotation; queries [rows, heads * head_dim]; keys and values [sequences * capacity, kv_heads * head_dim].
/// Positions from `capacity` on are not stored. Throws ConfigurationError where shapes do not fit. May be captured.
template <class Space, class T>
void append_to_cache(Stream<Space>& stream, const DecodeRows<Space>& rows, const DecodeAttentionShape& shape,
                     Matrix<const T, Space> projected, Matrix<const T, Space> normalized, RopeStyle style,
                     Matrix<const Accumulator<T>, Space> cosine, Matrix<const Accumulator<T>, Space> sine,
                     Matrix<T, Space> queries, Matrix<T, Space> keys, Matrix<T, Space> values);

/// Elements of the workspace of decode_attention, in Accumulator<T>.
template <class Space>
std::int64_t decode_attention_workspace(const DecodeAttentionShape& shape, std::int64_t rows);

/// output[row, h] = softmax(scale * query . keys) values over the positions that the row's query sees in the cache, its
/// own included; with sinks, exp(sink) is part of the sum and has no value. Keys are dealt out to several teams, whose
/// partial results a second launch combines ("Flash-Decoding", Dao, Haziza, Massa and Sizov, 2023); into how many
/// stretches depends on the shapes alone.
/// queries and output [rows, heads * head_dim]; keys and values as append_to_cache left them; sinks [heads] or empty;
/// workspace [decode_attention_workspace(...)]. Throws ConfigurationError where shapes do not fit. May be captured.
template <class Space, class T>
void decode_attention(Stream<Space>& stream, const DecodeRows<Space>& rows, const DecodeAttentionShape& shape,
                      Matrix<const T, Space> queries, Matrix<const T, Space> keys,
                      Matrix<const T, Space> values, Vector<const T, Space> sinks,
                      Vector<Accumulator<T>, Space> workspace, Matrix<T, Space> output);

}  // namespace encore::kernels
