// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/eager_reason.hpp>

#include <doctest/doctest.h>

namespace {

using namespace encore::graph;

Outline stack() {
  Outline outline;
  const auto add = [&](const std::string& name, Module module, Phase phase, int layer,
                       const char* because = "") {
    outline.add_segment({name, module, phase, layer, 0, {}, {}, because});
  };
  add("embedding", Module::embedding, Phase::forward, -1);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = std::to_string(layer);
    add(name + "/attn", Module::attn, Phase::forward, layer);
    add(name + "/mlp", Module::mlp, Phase::forward, layer, layer == 1 ? "waits for the host" : "");
    add(name + "/mlp/weight_gradient", Module::mlp, Phase::weight_gradient, layer);
  }
  add("optimizer", Module::optimizer, Phase::update, -1);
  return outline;
}

TEST_CASE("a segment has a reason to be eager exactly when no captured run holds it") {
  const Outline outline = stack();
  for (const CaptureScope scope : {CaptureScope::none, CaptureScope::layer, CaptureScope::full_iteration})
    for (const OptimizerCapture optimizer :
         {OptimizerCapture::eager, OptimizerCapture::separate, OptimizerCapture::joined})
      for (const std::set<Module>& modules :
           std::vector<std::set<Module>>{{}, {Module::attn}, {Module::mlp}, {Module::attn, Module::mlp}}) {
        const CapturePolicy policy{scope, modules, optimizer, 0};
        if (scope != CaptureScope::layer && !modules.empty()) continue;
        if (scope != CaptureScope::full_iteration && optimizer == OptimizerCapture::joined) continue;
        for (const Run& run : cut(outline, policy))
          for (std::size_t index = run.first; index < run.end; ++index) {
            const auto reason = why_eager(outline.segments()[index], policy);
            CHECK(reason.has_value() != run.captured);
            if (reason) CHECK_FALSE(reason->reason.empty());
          }
      }
}

TEST_CASE("the reason names the smallest change that captures the segment") {
  const Outline outline = stack();
  const auto reason = [&](std::size_t index, const CapturePolicy& policy) {
    return why_eager(outline.segments()[index], policy).value();
  };
  const CapturePolicy attn{CaptureScope::layer, {Module::attn}, OptimizerCapture::eager, 0};
  CHECK(reason(0, attn) == EagerReason{"belongs to no layer", "graph.impl=full_iteration"});
  CHECK(reason(2, attn) == EagerReason{"mlp is not in graph.modules", "graph.modules=attn,mlp"});
  CHECK(reason(5, attn) == EagerReason{"waits for the host", ""});
  CHECK(reason(7, attn) == EagerReason{"graph.optimizer is eager", "graph.optimizer=separate"});
  CHECK(reason(1, {}) == EagerReason{"graph.impl is none", "graph.impl=full_iteration"});
}

}  // namespace
