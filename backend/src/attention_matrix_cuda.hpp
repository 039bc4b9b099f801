// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.hpp"

#include <encore/backend/stream.hpp>

namespace encore::backend::impl {

/// Whether the kernels on matrix units compute this at all, without dropout and in bfloat16.
inline bool fits_matrix_units(const AttentionShape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.scale > 0 &&
         shape.batch * shape.heads * shape.tokens < (std::int64_t{1} << 26);
}

/// Whether the device has Hopper's own matrix instructions, and this build knows them.
bool has_hopper(const Stream<Kokkos::Cuda>& stream);

/// From here on its tiles of 64 rows pay.
inline constexpr std::int64_t hopper_tokens = 256;

/// Whether they are thought quicker than cuDNN, as measured on an H200.
inline bool prefers_matrix_units(const AttentionShape& shape, bool has_hopper) {
  const std::int64_t rows = shape.batch * shape.heads * shape.tokens;
  return shape.head_dim == 64 && ((has_hopper && shape.tokens >= hopper_tokens) || rows <= 4096);
}

/// Whether they turn queries and keys that are not turned yet. Each block does so again: at 128 tokens that takes 2.4 us
/// more in both passes, a launch of its own 1.7 (H200).
inline bool turns_inputs(const AttentionShape& shape) { return shape.tokens <= 64; }

/// Operands' addresses and strides are multiples of 16 bytes. Forward is one launch. Backward is one, or two where
/// row_dots [batch, heads, tokens, 2] are worth it.
void run_matrix_units(Stream<Kokkos::Cuda>& stream, const AttentionForward<bfloat16>& operands,
                      const AttentionRotation<float>& rotation);
void run_matrix_units(Stream<Kokkos::Cuda>& stream, const AttentionBackward<bfloat16>& operands,
                      const AttentionRotation<float>& rotation);

}  // namespace encore::backend::impl
