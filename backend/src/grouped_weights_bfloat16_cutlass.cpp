// SPDX-License-Identifier: Apache-2.0
#include "grouped_launch_cutlass.hpp"

namespace encore::backend::impl {

const std::vector<CutlassTile>& cutlass_tiles_of_weights_bfloat16() {
  return grouped_tiles_of_weights<__nv_bfloat16>();
}

}  // namespace encore::backend::impl
