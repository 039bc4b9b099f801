// SPDX-License-Identifier: Apache-2.0
#include "grouped_launch_cutlass.hpp"

namespace encore::backend::impl {

const std::vector<CutlassTile>& cutlass_tiles_of_rows_by_transposed() {
  return grouped_tiles_of_rows<GroupedKind::rows_by_transposed>();
}

}  // namespace encore::backend::impl
