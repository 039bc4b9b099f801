// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/policy.hpp>

#include <unordered_map>

namespace encore::graph {

namespace {

/// What has to be equal for two neighbouring segments to share a run. An empty key is eager.
std::string key_of(const Segment& segment, const CapturePolicy& policy) {
  if (policy.scope == CaptureScope::none || !segment.eager_because.empty()) return {};
  if (segment.phase == Phase::update) {
    switch (policy.optimizer) {
      case OptimizerCapture::eager: return {};
      case OptimizerCapture::separate: return "optimizer";
      case OptimizerCapture::joined: return "full_iteration";
    }
  }
  if (policy.scope == CaptureScope::full_iteration) return "full_iteration";
  if (segment.layer < 0) return {};
  if (!policy.modules.empty() && !policy.modules.contains(segment.module)) return {};
  std::string key = "layer." + std::to_string(segment.layer) + "/" + std::string(name_of(segment.phase));
  return segment.microbatch < 0 ? key : "microbatch." + std::to_string(segment.microbatch) + "/" + key;
}

}  // namespace

std::vector<Run> cut(const Outline& outline, const CapturePolicy& policy) {
  if (!policy.modules.empty() && policy.scope != CaptureScope::layer)
    throw ConfigurationError("graph.modules selects parts of layers and needs graph.impl = layer");
  if (policy.scope == CaptureScope::layer && policy.optimizer == OptimizerCapture::joined)
    throw ConfigurationError(
        "graph.optimizer = joined needs graph.impl = full_iteration; use separate or eager");
  std::vector<Run> runs;
  std::unordered_map<std::string, int> uses;
  std::string current;
  for (std::size_t index = 0; index < outline.segments().size(); ++index) {
    const std::string key = key_of(outline.segments()[index], policy);
    if (runs.empty() || key != current) {
      std::string name = key.empty() ? "eager" : key;
      if (const int use = ++uses[name]; use > 1) name += "." + std::to_string(use);
      runs.push_back({std::move(name), index, index, !key.empty()});
    }
    runs.back().end = index + 1;
    current = key;
  }
  return runs;
}

}  // namespace encore::graph
