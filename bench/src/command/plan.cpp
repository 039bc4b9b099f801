// SPDX-License-Identifier: Apache-2.0
#include "plan.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>

#include "../device/session.hpp"
#include "configure.hpp"
#include "json_output.hpp"
#include "numbers.hpp"
#include "plan_cluster.hpp"
#include "plan_lengths.hpp"
#include "plan_report.hpp"

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;

Json fate_json(const ModuleFate& fate) {
  Json json{{"module", fate.module}, {"state", fate.state()}};
  json["layers"] = fate.first_layer < 0 ? Json() : Json{fate.first_layer, fate.last_layer};
  json["segments"] = fate.segments;
  json["captured_segments"] = fate.captured;
  json["kernels"] = fate.kernels;
  if (!fate.reason.empty()) json["reason"] = fate.reason;
  if (!fate.change.empty()) json["change"] = fate.change;
  return json;
}

Json row_json(const PolicyRow& row) {
  Json json{{"policy", row.policy}, {"chosen", row.chosen}};
  if (!row.refused.empty()) {
    json["refused"] = refusal_json(row.refused);
    return json;
  }
  json["runs"] = row.runs;
  json["captured_runs"] = row.captured_runs;
  json["segments"] = row.segments;
  json["kernels"] = row.kernels;
  json["captured_kernels"] = row.captured_kernels;
  json["memory"] = memory_json(row.memory);
  return json;
}

std::string fate_text(const ModuleFate& fate) {
  std::string layers = "no layer";
  if (fate.first_layer >= 0)
    layers = fate.first_layer == fate.last_layer
                 ? fmt::format("layer {}", fate.first_layer)
                 : fmt::format("layers {}-{}", fate.first_layer, fate.last_layer);
  std::string text = fmt::format("  {:<13} {:<15} {}", layers, fate.module, fate.state());
  if (fate.captured > 0 && fate.captured < fate.segments)
    text += fmt::format(" ({} of {} segments)", fate.captured, fate.segments);
  if (!fate.reason.empty()) text += fmt::format(": {}", fate.reason);
  if (!fate.change.empty()) text += fmt::format(" (captured with {})", fate.change);
  return text + '\n';
}

std::string row_text(const PolicyRow& row) {
  const std::string name = (row.chosen ? "* " : "  ") + row.policy;
  if (!row.refused.empty()) return fmt::format("  {:<38} refused: {}\n", name, row.refused);
  return fmt::format("  {:<38} {:>6} {:>9} {:>9} {:>9} {:>9} {:>10}\n", name, row.runs, row.captured_runs,
                     row.segments, row.kernels, row.captured_kernels,
                     bytes_text(static_cast<double>(row.memory.total())));
}

std::string memory_text(const model::MemoryForecast& memory) {
  std::string text = "\nmemory\n";
  for (std::size_t use = 0; use < model::memory_uses; ++use)
    if (memory.bytes[use] > 0)
      text += fmt::format("  {:<16} {:>10}\n", model::name_of(static_cast<model::MemoryUse>(use)),
                          bytes_text(static_cast<double>(memory.bytes[use])));
  return text;
}

std::string plan_text(const model::Configuration& configuration, const std::vector<ModuleFate>& fates,
                      const std::vector<PolicyRow>& rows) {
  std::string text = fmt::format("{} model of {} layers, {} parameters, on {}; graph.impl = {}\n\n",
                                 configuration.model.family, configuration.model.layers,
                                 count_text(model::parameter_count(configuration.model)),
                                 name_of(configuration.backend), name_of(configuration.graph.impl));
  for (const ModuleFate& fate : fates) text += fate_text(fate);
  text += fmt::format("\n  {:<38} {:>6} {:>9} {:>9} {:>9} {:>9} {:>10}\n", "policy", "runs", "captured",
                      "segments", "kernels", "in graphs", "memory");
  for (const PolicyRow& row : rows) text += row_text(row);
  for (const PolicyRow& row : rows)
    if (row.chosen && row.refused.empty()) text += memory_text(row.memory);
  return text;
}

/// The configuration; where it is refused, JSON carries the refusal as well as standard error does.
model::ResolvedConfiguration resolve_or_explain(const PlanOptions& options, Console& console) {
  try {
    return resolve(options.configuration, "bytes");
  } catch (const ConfigurationError& error) {
    if (options.json) print_json(Json{{"refused", refusal_json(error.what())}}, console);
    throw;
  }
}

/// Why training would be refused for its memory; empty when it would not.
std::string refusal_for_memory(const model::Configuration& configuration, const model::StepPlan& plan) {
  if (configuration.graph.memory_limit == 0)
    return {};  // What is free here says nothing about where it will run.
  try {
    model::require_memory(configuration, model::first_shard(configuration.parallel),
                          model::forecast_memory(configuration, plan));
    return {};
  } catch (const OutOfMemoryError& error) {
    return error.what();
  }
}

}  // namespace

int print_plan(const PlanOptions& options, Console& console) {
  const model::ResolvedConfiguration resolved = resolve_or_explain(options, console);
  const model::Configuration& configuration = resolved.configuration;
  if (options.cluster) return print_cluster_plan(options, configuration, console);
  Json proposal;
  if (options.lengths) proposal = propose_buckets(options, configuration);

  const DeviceSession session(options.threads);
  const model::StepPlan plan = model::plan_step(configuration, model::KernelLabels::collect);
  const auto fates = module_fates(plan, model::capture_policy_of(configuration));
  const auto reuses = graph::reuses(plan.outline, plan.memory);
  const std::string order = reuses.empty() ? "" : graph::order_that_breaks(plan.outline, reuses.front());
  const auto rows = policy_rows(configuration);
  const std::string too_large = refusal_for_memory(configuration, plan);
  const std::size_t over_budget = model::memory_over_budget(configuration);
  const int code = too_large.empty() ? 0 : exit_code(ErrorCode::out_of_memory);
  if (!options.json) {
    console.print(plan_text(configuration, fates, rows));
    console.line(fmt::format("\nthe arena's plan was audited; {} places in it are used again{}",
                             reuses.size(), order.empty() ? "" : "; for instance: " + order));
    for (const std::string& note : resolved.notes) console.line(fmt::format("note: {}", note));
    if (over_budget > 0)
      console.line(
          fmt::format("note: a step over train.expert_budget takes {} more while it is done again eagerly",
                      bytes_text(static_cast<double>(over_budget))));
    if (options.lengths) console.print(buckets_text(proposal));
    if (!too_large.empty()) console.line(fmt::format("refused: {}", too_large));
    return code;
  }
  Json json{{"configuration", Json::parse(model::to_json(configuration))},
            {"parameters", model::parameter_count(configuration.model)},
            {"notes", resolved.notes},
            {"modules", Json::array()},
            {"policies", Json::array()}};
  json["arena"] = {{"reuses", reuses.size()}};
  if (!order.empty()) json["arena"]["order_that_would_break_it"] = order;
  for (const ModuleFate& fate : fates) json["modules"].push_back(fate_json(fate));
  for (const PolicyRow& row : rows) json["policies"].push_back(row_json(row));
  if (over_budget > 0) json["over_budget_bytes"] = over_budget;
  if (options.lengths) json["lengths"] = std::move(proposal);
  if (!too_large.empty()) json["refused"] = refusal_json(too_large);
  print_json(json, console);
  return code;
}

}  // namespace encore::command
