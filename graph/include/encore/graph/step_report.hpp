// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace encore::graph {

enum class StepMode { eager, capture, replay };
std::string_view name_of(StepMode mode);

/// What one step did on the device, apart from its numbers.
struct StepReport {
  StepMode mode = StepMode::eager;
  std::size_t graph_nodes = 0;     ///< nodes replayed
  std::size_t eager_launches = 0;  ///< kernels launched one by one
  std::size_t host_syncs = 0;      ///< waits for the device inside the step
  std::size_t host_copies = 0;     ///< copies from or to the host inside the step
  std::size_t fallbacks = 0;       ///< runs that the policy captures but that ran eagerly, after warm-up
  std::size_t captures = 0;        ///< graphs recorded in this step
  double capture_seconds = 0;      ///< recording and instantiating, in the step that captured
  std::size_t graph_bytes = 0;     ///< memory of the graphs that were recorded in it
};

}  // namespace encore::graph
