// SPDX-License-Identifier: Apache-2.0
#include "information.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/version.hpp>
#include <encore/model/files/graph_rules.hpp>
#include <encore/model/files/presets.hpp>
#include <encore/model/memory_forecast.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <optional>

#include "../device/description.hpp"
#include "../device/session.hpp"
#include "configure.hpp"
#include "json_output.hpp"
#include "numbers.hpp"

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;

bool names_configuration(const ConfigurationOptions& options) {
  return options.preset || options.file || options.load || !options.assignments.empty() ||
         !options.flags.empty();
}

Json build_json() {
  const BuildDescription build = describe_build();
  return {{"version", ENCORE_VERSION_STRING}, {"commit", backend::git_revision()},
          {"kokkos", build.kokkos},           {"compiler", build.compiler},
          {"backends", build.backends},       {"libraries", build.libraries}};
}

Json devices_json() {
  Json devices = Json::array();
  for (const DeviceDescription& device : describe_devices())
    devices.push_back({{"backend", device.backend}, {"device", device.device}, {"blas", device.blas}});
  return devices;
}

Json presets_json() {
  Json presets = Json::array();
  for (const model::Preset& preset : model::presets())
    presets.push_back({{"name", preset.name}, {"help", preset.help}});
  return presets;
}

Json key_descriptions_json() {
  Json keys = Json::array();
  for (const model::KeyDescription& key : model::configuration_keys())
    keys.push_back(
        {{"key", key.name}, {"allowed", key.allowed}, {"default", key.fallback}, {"help", key.help}});
  return keys;
}

Json entries_json(const model::ResolvedConfiguration& resolved) {
  Json entries = Json::array();
  for (const auto& entry : resolved.entries)
    if (entry.has_meaning)
      entries.push_back({{"key", entry.key}, {"value", entry.value}, {"source", entry.source}});
  return entries;
}

Json rules_json() {
  Json rules = Json::array();
  for (const model::Rule& rule : model::graph_rules())
    rules.push_back({{"id", rule.id},
                     {"outcome", name_of(rule.outcome)},
                     {"combination", rule.combination},
                     {"reason", rule.reason},
                     {"change", rule.change},
                     {"peers", rule.peers}});
  return rules;
}

std::string listed(const Json& texts) {
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts.get<std::vector<std::string>>(), ", "));
}

std::string build_text(const Json& information) {
  const Json& build = information["build"];
  std::string text = fmt::format("encore {} ({})\nKokkos {}, compiler {}\nbackends: {}\nlibraries: {}\n",
                                 build["version"].get<std::string>(), build["commit"].get<std::string>(),
                                 build["kokkos"].get<std::string>(), build["compiler"].get<std::string>(),
                                 listed(build["backends"]), listed(build["libraries"]));
  for (const Json& device : information["devices"])
    text += fmt::format("{}: {}; matrix products by {}\n", device["backend"].get<std::string>(),
                        device["device"].get<std::string>(), device["blas"].get<std::string>());
  if (information.contains("no_device"))
    text += fmt::format("devices: none, {}\n", information["no_device"].get<std::string>());
  return text;
}

std::string presets_text() {
  std::string text = "\npresets:\n";
  for (const model::Preset& preset : model::presets())
    text += fmt::format("  {:<16} {}\n", preset.name, preset.help);
  return text;
}

std::string key_descriptions_text() {
  std::string text = "\nconfiguration keys:\n";
  for (const model::KeyDescription& key : model::configuration_keys())
    text +=
        fmt::format("  {:<28} {}\n{:31}{}; default: {}\n", key.name, key.help, "", key.allowed, key.fallback);
  return text;
}

std::string configuration_text(const Json& information) {
  std::string text = "\nconfiguration:\n";
  for (const Json& entry : information["keys"])
    text += fmt::format("  {:<28} {:<16} ({})\n", entry["key"].get<std::string>(),
                        entry["value"].get<std::string>(), entry["source"].get<std::string>());
  for (const Json& note : information["notes"]) text += fmt::format("note: {}\n", note.get<std::string>());
  text += fmt::format("\nparameters: {}\n", count_text(information["parameters"].get<std::int64_t>()));
  if (!information.contains("memory"))
    return text + fmt::format("memory: unknown, {}\n", information["no_memory"].get<std::string>());
  const Json& memory = information["memory"];
  text += fmt::format("memory: {} on {}\n", bytes_text(memory["total_bytes"].get<double>()),
                      information["configuration"]["backend"].get<std::string>());
  for (const auto& [kind, bytes] : memory["bytes"].items())
    text += fmt::format("  {:<16} {:>10}\n", kind, bytes_text(bytes.get<double>()));
  return text;
}

void add_configuration(Json& information, const model::ResolvedConfiguration& resolved, bool has_devices) {
  const model::Configuration& configuration = resolved.configuration;
  information["configuration"] = Json::parse(model::to_json(configuration));
  information["keys"] = entries_json(resolved);
  information["notes"] = resolved.notes;
  information["parameters"] = model::parameter_count(configuration.model);
  if (!has_devices) {
    information["no_memory"] = "there is no device to ask";
    return;
  }
  try {
    information["memory"] = memory_json(model::forecast_memory(configuration));
  } catch (const DeviceError& error) {
    information["no_memory"] = error.what();
  }
}

}  // namespace

int print_information(const InformationOptions& options, Console& console) {
  if (!options.json && (options.rules || options.markdown)) {
    console.print(options.rules ? model::graph_rules_as_markdown() : model::configuration_keys_as_markdown());
    return 0;
  }
  std::optional<model::ResolvedConfiguration> resolved;
  if (names_configuration(options.configuration)) resolved = resolve(options.configuration, "bytes");

  Json information{{"build", build_json()}};
  std::optional<DeviceSession> session;
  try {
    session.emplace(options.threads);
    information["devices"] = devices_json();
  } catch (const DeviceError& error) {
    information["devices"] = Json::array();
    information["no_device"] = error.what();
  }
  information["presets"] = presets_json();
  if (options.keys) information["key_descriptions"] = key_descriptions_json();
  if (options.rules) information["rules"] = rules_json();
  if (resolved) add_configuration(information, *resolved, !information["devices"].empty());

  if (options.json) {
    console.line(information.dump(2));
  } else {
    std::string text = build_text(information);
    if (resolved) text += configuration_text(information);
    if (options.keys) text += key_descriptions_text();
    if (!resolved && !options.keys) text += presets_text();
    console.print(text);
  }
  return 0;
}

}  // namespace encore::command
