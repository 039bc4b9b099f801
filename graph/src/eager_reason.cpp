// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/eager_reason.hpp>

namespace encore::graph {

namespace {

std::string with_module(const CapturePolicy& policy, Module module) {
  std::set<Module> modules = policy.modules;
  modules.insert(module);
  std::string text = "graph.modules=";
  for (const Module each : modules) text += (text.back() == '=' ? "" : ",") + std::string(name_of(each));
  return text;
}

}  // namespace

std::optional<EagerReason> why_eager(const Segment& segment, const CapturePolicy& policy) {
  if (policy.scope == CaptureScope::none)
    return EagerReason{"graph.impl is none", "graph.impl=full_iteration"};
  if (!segment.eager_because.empty()) return EagerReason{segment.eager_because, ""};
  if (segment.phase == Phase::update) {
    if (policy.optimizer != OptimizerCapture::eager) return std::nullopt;
    return EagerReason{"graph.optimizer is eager", "graph.optimizer=separate"};
  }
  if (policy.scope == CaptureScope::full_iteration) return std::nullopt;
  if (segment.layer < 0) return EagerReason{"belongs to no layer", "graph.impl=full_iteration"};
  if (policy.modules.empty() || policy.modules.contains(segment.module)) return std::nullopt;
  return EagerReason{std::string(name_of(segment.module)) + " is not in graph.modules",
                     with_module(policy, segment.module)};
}

}  // namespace encore::graph
