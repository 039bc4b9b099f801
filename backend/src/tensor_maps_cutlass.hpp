// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.hpp"
#include "grouped_cutlass.hpp"

#include <cuda.h>

namespace encore::backend::impl {

/// How the TMA finds boxes of 64 x 64 bfloat16 elements in a matrix of at least one row. Beyond its ends there are
/// zeros. Throws DeviceError.
CUtensorMap map_of_rows(const CutlassMatrix& matrix);

/// The same in one of `count` matrices that lie one behind the other, boxes of `box_rows` x 64. `matrix` is the first.
CUtensorMap map_of_matrices(const CutlassMatrix& matrix, std::int64_t count, int box_rows);

/// Boxes of 64 tokens of a head: at (0, token, head, batch). `heads`: of this operand. Behind the last token there are
/// zeros.
CUtensorMap map_of_heads(const HeadsOperand<const bfloat16>& operand, const AttentionShape& shape,
                         std::int64_t heads);

}  // namespace encore::backend::impl
