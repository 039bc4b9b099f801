// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/outline.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace encore::graph {

enum class CaptureScope { none, layer, full_iteration };

/// separate: the optimizer is a run of its own. joined: it belongs to the full iteration's run. eager: it is
/// never recorded.
enum class OptimizerCapture { separate, joined, eager };

struct CapturePolicy {
  CaptureScope scope = CaptureScope::none;
  std::set<Module> modules;  ///< for `layer`; empty: whole layers
  OptimizerCapture optimizer = OptimizerCapture::separate;
  std::int64_t warmup_steps = 3;  ///< steps that run eagerly before anything is recorded
  /// Whether a broken replay contract makes the executor record what changed anew, instead of throwing.
  bool recapture = false;
};

/// A stretch of segments [first, end) that is recorded as one graph, or run eagerly.
struct Run {
  std::string name;
  std::size_t first;
  std::size_t end;
  bool captured;
};

/// Cuts the program into runs of different names that cover all segments in order. A segment that says why it has to
/// be eager is in no captured run. Throws ConfigurationError for a module list
/// with a scope other than `layer`, and for `joined` without `full_iteration`.
std::vector<Run> cut(const Outline& outline, const CapturePolicy& policy);

}  // namespace encore::graph
