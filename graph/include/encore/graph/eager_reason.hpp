// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/outline.hpp>
#include <encore/graph/policy.hpp>

#include <optional>
#include <string>

namespace encore::graph {

/// Why a policy leaves a segment eager.
struct EagerReason {
  std::string reason;  ///< a clause: `belongs to no layer`
  std::string change;  ///< the smallest change of configuration that captures it; empty: none does
  friend bool operator==(const EagerReason&, const EagerReason&) = default;
};

/// Nothing exactly when `cut` puts the segment into a captured run.
std::optional<EagerReason> why_eager(const Segment& segment, const CapturePolicy& policy);

}  // namespace encore::graph
