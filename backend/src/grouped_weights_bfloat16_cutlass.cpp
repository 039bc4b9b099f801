// SPDX-License-Identifier: Apache-2.0
#include "grouped_gemm_cutlass.hpp"

namespace encore::backend::impl {

const std::vector<CutlassTile>& cutlass_tiles_of_weights_bfloat16() {
  return cutlass_weights_tiles<cutlass::bfloat16_t>();
}

}  // namespace encore::backend::impl
