// SPDX-License-Identifier: Apache-2.0
#include "grouped_gemm_cutlass.hpp"

namespace encore::backend::impl {

const std::vector<CutlassTile>& cutlass_tiles_of_rows_by_transposed() {
  return cutlass_rows_tiles<cutlass::layout::ColumnMajor>();
}

std::size_t cutlass_tensor_map_bytes(int multiprocessors) {
  constexpr std::size_t maps = 5;  // two operands, an addend, and a result for each of two warp groups
  return maps * sizeof(cute::TmaDescriptor) * static_cast<std::size_t>(multiprocessors);
}

}  // namespace encore::backend::impl
