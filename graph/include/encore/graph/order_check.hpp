// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/outline.hpp>

namespace encore::graph {

/// Proves that `changed`, the same program with its segments in another order, computes what `planned` does:
/// every segment finds in every buffer what the same segment as before left there last, and leaves it for the
/// same readers. Gradients and metrics that are added up count too: the first to write overwrites, so their
/// order is fixed. Throws InternalError naming buffer, segments and order where that is broken, or the segment
/// that only one of the two has. Touches no device.
void check_order(const Outline& planned, const Outline& changed);

}  // namespace encore::graph
