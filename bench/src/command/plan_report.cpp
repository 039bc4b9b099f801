// SPDX-License-Identifier: Apache-2.0
#include "plan_report.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/eager_reason.hpp>

#include <algorithm>
#include <map>

namespace encore::command {

namespace {

/// Modules of one layer, in the order in which they first run.
using Layer = std::vector<ModuleFate>;

ModuleFate& fate_of(Layer& layer, std::string_view module, std::int64_t number) {
  const auto found = std::ranges::find(layer, module, &ModuleFate::module);
  if (found != layer.end()) return *found;
  ModuleFate fate;
  fate.module = module;
  fate.first_layer = fate.last_layer = number;
  return layer.emplace_back(std::move(fate));
}

void add_clause(std::string& list, const std::string& clause) {
  if (clause.empty() || list.find(clause) != std::string::npos) return;
  list += (list.empty() ? "" : "; ") + clause;
}

bool alike(const Layer& one, const Layer& other) {
  return std::ranges::equal(one, other, [](const ModuleFate& a, const ModuleFate& b) {
    return a.module == b.module && a.segments == b.segments && a.captured == b.captured &&
           a.kernels == b.kernels && a.reason == b.reason && a.change == b.change;
  });
}

PolicyRow row_of(const model::Configuration& configuration, std::string policy) {
  PolicyRow row;
  row.policy = std::move(policy);
  try {
    const model::StepPlan plan = model::plan_step(configuration, model::KernelLabels::collect);
    row.runs = plan.runs.size();
    row.captured_runs = static_cast<std::size_t>(std::ranges::count_if(plan.runs, &graph::Run::captured));
    row.segments = plan.outline.segments().size();
    for (const auto& labels : plan.kernels) row.kernels += labels.size();
    row.captured_kernels = model::captured_kernels(plan.runs, plan.kernels);
    row.memory = model::forecast_memory(configuration, plan);
  } catch (const ConfigurationError& error) {
    row.refused = error.what();
  }
  return row;
}

}  // namespace

const char* ModuleFate::state() const {
  if (captured == segments) return "captured";
  return captured == 0 ? "eager" : "partly";
}

std::vector<ModuleFate> module_fates(const model::StepPlan& plan, const graph::CapturePolicy& policy) {
  std::map<std::int64_t, Layer> layers;
  const auto& segments = plan.outline.segments();
  for (std::size_t index = 0; index < segments.size(); ++index) {
    const graph::Segment& segment = segments[index];
    ModuleFate& fate = fate_of(layers[segment.layer], graph::name_of(segment.module), segment.layer);
    ++fate.segments;
    if (!plan.kernels.empty()) fate.kernels += plan.kernels[index].size();
    if (const auto eager = graph::why_eager(segment, policy)) {
      add_clause(fate.reason, eager->reason);
      add_clause(fate.change, eager->change);
    } else {
      ++fate.captured;
    }
  }
  std::vector<ModuleFate> fates;
  for (auto first = layers.begin(); first != layers.end();) {
    auto end = std::next(first);
    std::int64_t last = first->first;
    while (end != layers.end() && first->first >= 0 && end->first == last + 1 &&
           alike(first->second, end->second))
      last = (end++)->first;
    const auto count = static_cast<std::size_t>(last - first->first + 1);
    for (ModuleFate fate : first->second) {
      fate.last_layer = last;
      fate.segments *= count;
      fate.captured *= count;
      fate.kernels *= count;
      fates.push_back(std::move(fate));
    }
    first = end;
  }
  return fates;
}

std::vector<PolicyRow> policy_rows(const model::Configuration& configuration) {
  std::vector<PolicyRow> rows;
  using enum model::GraphImplementation;
  for (const auto implementation : {none, layer, full_iteration}) {
    model::Configuration changed = model::with_policy(configuration, implementation);
    const std::string name(name_of(implementation));
    rows.push_back(row_of(changed, name));
    rows.back().chosen = implementation == configuration.graph.impl;
    if (!changed.train.recompute.empty()) continue;
    changed.train.recompute = {model::RecomputeModule::full};
    rows.push_back(row_of(changed, name + ", train.recompute=full"));
  }
  return rows;
}

}  // namespace encore::command
