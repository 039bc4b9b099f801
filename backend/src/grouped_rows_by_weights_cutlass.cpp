// SPDX-License-Identifier: Apache-2.0
#include "grouped_gemm_cutlass.hpp"

namespace encore::backend::impl {

const std::vector<CutlassTile>& cutlass_tiles_of_rows_by_weights() {
  return cutlass_rows_tiles<cutlass::layout::RowMajor>();
}

}  // namespace encore::backend::impl
