// SPDX-License-Identifier: Apache-2.0
#include "dump.hpp"

#include <encore/graph/dump_difference.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <encore/model/step_plan.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

#include "../device/session.hpp"
#include "configure.hpp"
#include "json_output.hpp"

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;

graph::Dump read(const std::filesystem::path& file) {
  constexpr std::size_t most_bytes = std::size_t{4} << 30;
  return graph::parse_dump(model::read_text_file(file, most_bytes), file.string());
}

int print_difference(const DumpOptions& options, Console& console) {
  const auto differences = graph::compare(read(options.difference.at(0)), read(options.difference.at(1)));
  if (options.json) {
    Json list = Json::array();
    for (const graph::DumpDifference& each : differences)
      list.push_back({{"subject", each.subject},
                      {"name", each.name},
                      {"change", each.change},
                      {"before", each.before},
                      {"after", each.after}});
    print_json({{"equal", differences.empty()}, {"differences", std::move(list)}}, console);
  } else {
    console.print(differences.empty() ? "no difference\n" : graph::to_text(differences));
  }
  return differences.empty() ? 0 : 1;
}

graph::Dump dump_of(const DumpOptions& options) {
  const model::ResolvedConfiguration resolved = resolve(options.configuration, "bytes");
  std::vector<std::pair<std::string, std::string>> settings;
  for (const auto& entry : resolved.entries) settings.emplace_back(entry.key, entry.value);
  const DeviceSession session(options.threads);
  const model::StepPlan plan = model::plan_step(resolved.configuration, model::KernelLabels::collect);
  return graph::make_dump(plan.outline, plan.memory, plan.runs, plan.kernels, std::move(settings));
}

}  // namespace

int dump(const DumpOptions& options, Console& console) {
  if (!options.difference.empty()) return print_difference(options, console);
  const graph::Dump dump = dump_of(options);
  if (options.json) {
    console.line(graph::to_json(dump));
  } else {
    console.print(options.dot ? graph::to_dot(dump) : graph::to_text(dump));
  }
  return 0;
}

}  // namespace encore::command
