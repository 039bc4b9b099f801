// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/attention_shape.hpp>
#include <encore/backend/data_type.hpp>

#include <cstdint>

namespace encore::backend::impl {

/// Operands of the forward kernels.
template <class T>
struct AttentionForward {
  AttentionShape shape;
  AttentionDropout dropout;
  HeadsOperand<const T> query, key, value;
  HeadsOperand<T> output;
  Accumulator<T>* log_sum_exp;
  const Accumulator<T>* sinks;  ///< null: none
};

/// Operands of the backward kernels. row_dots [batch, heads, tokens]: the sum over d of output * its gradient.
template <class T>
struct AttentionBackward {
  AttentionShape shape;
  AttentionDropout dropout;
  HeadsOperand<const T> query, key, value, output, output_gradient;
  HeadsOperand<T> query_gradient, key_gradient, value_gradient;
  const Accumulator<T>* log_sum_exp;
  Accumulator<T>* row_dots;
};

/// What one team computes: a block of queries, or of keys, of one head.
struct AttentionItem {
  std::int64_t batch, head, block;
};

/// Positions that a query sees at most.
ENCORE_HOST_DEVICE inline std::int64_t window_of(const AttentionShape& shape) {
  return shape.window > 0 && shape.window < shape.tokens ? shape.window : shape.tokens;
}

/// The first key, rounded down to a block, that a query from `query_begin` on sees.
ENCORE_HOST_DEVICE inline std::int64_t first_key(const AttentionShape& shape, std::int64_t query_begin,
                                                 std::int64_t block) {
  const std::int64_t first = query_begin + 1 - window_of(shape);
  return first > 0 ? first / block * block : 0;
}

/// One past the last query that sees a key before `key_end`.
ENCORE_HOST_DEVICE inline std::int64_t query_end(const AttentionShape& shape, std::int64_t key_end) {
  const std::int64_t end = key_end + window_of(shape) - 1;
  return end < shape.tokens ? end : shape.tokens;
}

/// Item `rank` of batch * heads * blocks. Causal blocks cost more the later (queries) or earlier (keys) they
/// are, so they are dealt from both ends in turn: contiguous shares then cost alike.
ENCORE_HOST_DEVICE inline AttentionItem attention_item(std::int64_t rank, std::int64_t heads,
                                                       std::int64_t blocks) {
  const std::int64_t turn = rank % blocks;
  const std::int64_t row = rank / blocks;
  return {row / heads, row % heads, turn % 2 == 0 ? blocks - 1 - turn / 2 : turn / 2};
}

template <class T>
ENCORE_HOST_DEVICE inline T* head_of(const HeadsOperand<T>& operand, std::int64_t batch, std::int64_t head,
                                     std::int64_t token) {
  return operand.data + batch * operand.batch_stride + token * operand.token_stride +
         head * operand.head_stride;
}

inline constexpr float log2_of_e = 1.4426950408889634F;

/// How far a tile of queries and one of keys let queries see keys.
struct TileSight {
  bool none, all;

  ENCORE_HOST_DEVICE static TileSight of(int query, int queries, int key, int keys, int window) {
    const int last_query = query + queries - 1, last_key = key + keys - 1;
    return {key > last_query || last_key + window <= query, last_key <= query && key + window > last_query};
  }
};

ENCORE_HOST_DEVICE inline bool sees(int query, int key, int window) {
  return key <= query && key + window > query;
}

/// Turns a pair; back with the sine's negative.
ENCORE_HOST_DEVICE inline void turn(bfloat16& first, bfloat16& second, float cosine, float sine) {
  const auto x = static_cast<float>(first), y = static_cast<float>(second);
  first = bfloat16(x * cosine - y * sine);
  second = bfloat16(x * sine + y * cosine);
}

/// Queries of a head that row_dots has room for on a GPU's matrix units, two numbers each.
ENCORE_HOST_DEVICE inline std::int64_t padded_tokens(std::int64_t tokens) { return (tokens + 63) / 64 * 64; }

}  // namespace encore::backend::impl
