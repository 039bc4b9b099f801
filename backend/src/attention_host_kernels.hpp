// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.hpp"

#include <cstddef>

namespace encore::backend::impl {

/// Queries, and keys, of a block of scores.
inline constexpr std::int64_t host_queries = 64;
inline constexpr std::int64_t host_keys = 64;

/// The blocks of work of attention on a host core. Every item is independent of the others; `scratch` is memory
/// of its own, aligned to 64 bytes.
template <class T>
struct HostAttention {
  /// Items: batch * heads * blocks of queries.
  static std::size_t forward_scratch_bytes(std::int64_t head_dim);
  static void forward(const AttentionForward<T>& operands, std::int64_t item, std::byte* scratch);

  /// Items: batch * heads * blocks of queries. Also sets row_dots, which key_gradient reads.
  static std::size_t query_gradient_scratch_bytes(std::int64_t head_dim);
  static void query_gradient(const AttentionBackward<T>& operands, std::int64_t item, std::byte* scratch);

  /// Items: batch * kv_heads * blocks of keys. Also the gradients of the values.
  static std::size_t key_gradient_scratch_bytes(std::int64_t head_dim);
  static void key_gradient(const AttentionBackward<T>& operands, std::int64_t item, std::byte* scratch);
};

}  // namespace encore::backend::impl
