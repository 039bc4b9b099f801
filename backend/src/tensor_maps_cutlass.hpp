// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grouped_cutlass.hpp"

#include <cuda.h>

namespace encore::backend::impl {

/// How the TMA finds boxes of 64 x 64 bfloat16 elements in a matrix of at least one row. Beyond its ends there are
/// zeros. Throws DeviceError.
CUtensorMap map_of_rows(const CutlassMatrix& matrix);

/// The same in one of `count` matrices that lie one behind the other, boxes of `box_rows` x 64. `matrix` is the first.
CUtensorMap map_of_matrices(const CutlassMatrix& matrix, std::int64_t count, int box_rows);

}  // namespace encore::backend::impl
