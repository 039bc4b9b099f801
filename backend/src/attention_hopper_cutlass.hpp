// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.hpp"

struct CUstream_st;

namespace encore::backend::impl {

/// Attention of bfloat16, head_dim 64, on Hopper's own matrix instructions: a group of four warps has 64 queries or
/// keys, and multiplies 64 x 64 tiles that the TMA brings. Operands as attention on matrix units takes them. This header
/// knows neither Kokkos nor CUTLASS. `groups`, of warps that share a block's work: 1, 2 or 4.
struct HopperAttention {
  /// Loads the kernels, which may not happen in a capture. Throws DeviceError.
  static void load();
  /// Throw DeviceError when a kernel does not start. Neither allocate nor synchronise; may be captured. `programmatic`:
  /// may begin before the kernel before is quite over.
  static void run(const AttentionForward<bfloat16>& operands, int groups, bool programmatic,
                  CUstream_st* stream);
  /// Reads row_dots as DescribeQueries leaves them.
  static void run(const AttentionBackward<bfloat16>& operands, const AttentionRotation<float>& rotation,
                  int groups, bool programmatic, CUstream_st* stream);
};

}  // namespace encore::backend::impl
