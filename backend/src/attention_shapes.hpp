// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.hpp"

#include <encore/backend/access.hpp>
#include <encore/backend/attention.hpp>
#include <encore/backend/error.hpp>

#include <string>

namespace encore::backend::impl {

inline constexpr std::int64_t largest_head_dim = 256;

inline std::string shape_text(const AttentionShape& shape) {
  return "batch " + std::to_string(shape.batch) + ", tokens " + std::to_string(shape.tokens) + ", heads " +
         std::to_string(shape.heads) + ", kv_heads " + std::to_string(shape.kv_heads) + ", head_dim " +
         std::to_string(shape.head_dim) +
         (shape.window == 0 ? "" : ", window " + std::to_string(shape.window)) +
         (shape.sinks ? ", sinks" : "");
}

inline void check_shape(const AttentionShape& shape) {
  if (shape.batch < 0 || shape.tokens < 0 || shape.heads < 1 || shape.kv_heads < 1 ||
      shape.heads % shape.kv_heads != 0 || shape.window < 0)
    throw InternalError("attention with " + shape_text(shape) +
                        ": kv_heads must divide heads, and nothing be negative");
  if (shape.head_dim < 1 || shape.head_dim > largest_head_dim)
    throw InternalError("attention with " + shape_text(shape) + ": head_dim must be 1 to " +
                        std::to_string(largest_head_dim));
}

/// Those of `products` matrix products of what the queries see: 2 forward, 5 backward.
inline double attention_flops(const AttentionShape& shape, int products) {
  const auto tokens = static_cast<double>(shape.tokens), window = static_cast<double>(window_of(shape));
  const double pairs = window * (window + 1) / 2 + (tokens - window) * window;
  return 2.0 * products * pairs * static_cast<double>(shape.batch * shape.heads * shape.head_dim);
}

template <class A>
void check_sinks(const AttentionShape& shape, const A* sinks) {
  if (shape.sinks != (sinks != nullptr))
    throw InternalError("attention with " + shape_text(shape) +
                        ": sinks must be given exactly if the shape has them");
}

template <class A>
void check_no_rotation(const AttentionShape& shape, const AttentionRotation<A>& rotation) {
  if (rotation.cosine != nullptr)
    throw InternalError("attention with " + shape_text(shape) +
                        ": its engine does not turn heads; ask rotates_inputs and rotates_gradients, and "
                        "align operands to 16 "
                        "bytes");
}

/// Everything from an operand's first element to its last; strided operands share ranges with their neighbours.
template <class T>
Access heads_access(const HeadsOperand<T>& operand, const AttentionShape& shape, std::int64_t heads,
                    bool writes) {
  const auto* begin = reinterpret_cast<const std::byte*>(operand.data);
  const std::int64_t last = (shape.batch - 1) * operand.batch_stride +
                            (shape.tokens - 1) * operand.token_stride + (heads - 1) * operand.head_stride +
                            shape.head_dim - 1;
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(sizeof(T)), writes};
}

}  // namespace encore::backend::impl
