// SPDX-License-Identifier: Apache-2.0
#include "grouped_launch_cutlass.hpp"

namespace encore::backend::impl {

const std::vector<CutlassTile>& cutlass_tiles_of_weights_float() { return grouped_tiles_of_weights<float>(); }

}  // namespace encore::backend::impl
