// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/graph_rules.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <encore/model/files/presets.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "configuration_settings.hpp"
#include "strict_json.hpp"
#include "text.hpp"

namespace encore::model {

struct ConfigurationSources::State {
  Settings settings;
  MegatronSettings megatron;
  std::optional<std::string> preset;

  /// Keeps the setting unless a stronger source has set the key. Equally strong: the later one holds.
  template <class Map, class Entry>
  static void put(Map& map, std::string_view key, Entry entry) {
    const auto found = map.find(key);
    if (found == map.end()) {
      map.emplace(key, std::move(entry));
    } else if (found->second.strength <= entry.strength) {
      found->second = std::move(entry);
    }
  }

  void set(std::string_view key, std::string_view text, Strength strength, std::string_view source) {
    if (find_megatron_key(key) != nullptr) {
      put(megatron, key, MegatronSetting{std::string(text), strength, std::string(source)});
      return;
    }
    const Key* const known = find_key(key);
    if (known == nullptr) throw_unknown_key(key, source);
    put(settings, key, Setting{parse_value(*known, text, source), strength, std::string(source)});
  }

  void set(std::string_view key, const nlohmann::json& json, Strength strength, std::string_view source) {
    if (const MegatronKey* const known = find_megatron_key(key)) {
      // Megatron's own files write null for what is not set.
      if (!json.is_null())
        put(megatron, key,
            MegatronSetting{megatron_text(*known, json, source), strength, std::string(source)});
      return;
    }
    const Key* const known = find_key(key);
    if (known == nullptr) throw_unknown_key(key, source);
    put(settings, key, Setting{parse_value(*known, json, source), strength, std::string(source)});
  }

  static std::string megatron_text(const MegatronKey& key, const nlohmann::json& json,
                                   std::string_view source) {
    switch (key.kind) {
      case MegatronKind::truth:
        if (json.is_boolean()) return json.dump();
        break;
      case MegatronKind::number:
        if (json.is_number_integer()) return json.dump();
        break;
      case MegatronKind::real:
        if (json.is_number()) return json.dump();
        break;
      case MegatronKind::text:
        if (json.is_string()) return json.get<std::string>();
        break;
      case MegatronKind::texts:
        if (json.is_string()) return json.get<std::string>();
        if (const auto is_text = [](const nlohmann::json& item) { return item.is_string(); };
            json.is_array() && std::ranges::all_of(json, is_text))
          return fmt::format("{}", fmt::join(json.get<std::vector<std::string>>(), ","));
        break;
    }
    constexpr std::array<std::string_view, 5> kinds = {"a string", "a string or a list of strings",
                                                       "a whole number", "a number", "true or false"};
    throw ConfigurationError(fmt::format("{} = {} ({}) must be {}", key.name, printable(json.dump()), source,
                                         kinds[static_cast<std::size_t>(key.kind)]));
  }

  /// Walks through sections; `prefix` is the name of the section with its dot.
  void set_section(const nlohmann::json& section, const std::string& prefix, std::set<std::string>& seen,
                   std::string_view source) {
    for (const auto& [name, value] : section.items()) {
      const std::string key = prefix + name;
      if (value.is_object()) {
        set_section(value, key + ".", seen, source);
        continue;
      }
      if (!seen.insert(key).second)
        throw ConfigurationError(
            fmt::format("{} has the key {} twice, nested and dotted", source, in_quotes(key)));
      set(key, value, Strength::file, source);
    }
  }
};

namespace {

using Notes = std::vector<std::string>;

std::string shown(const Settings::value_type& setting) {
  return fmt::format("{} = {} ({})", setting.first, value_text(setting.second.value), setting.second.source);
}

/// A detail that a stronger source has made meaningless gives way: a configuration file for `layer` still
/// runs with `--set graph.impl=full_iteration`, and a checkpoint with learned positions under a preset with
/// rotary ones. Equally strong, the two contradict each other, and the checks say so.
void drop_if_overruled(Settings& settings, Notes& notes, std::string_view detail, std::string_view by,
                       const std::function<bool(const std::string& detail, const std::string& by)>& fits) {
  const auto weaker = settings.find(detail);
  const auto stronger = settings.find(by);
  if (weaker == settings.end() || stronger == settings.end()) return;
  if (weaker->second.strength >= stronger->second.strength ||
      fits(value_text(weaker->second.value), value_text(stronger->second.value)))
    return;
  notes.push_back(note(GraphRule::detail_overruled,
                       fmt::format("{} was dropped because {}", shown(*weaker), shown(*stronger))));
  settings.erase(weaker);
}

/// Without graphs there are no modules to record, however strongly they are asked for.
void clear_modules_without_graphs(Settings& settings, Notes& notes) {
  const auto modules = settings.find("graph.modules");
  const auto impl = settings.find("graph.impl");
  if (modules == settings.end() || impl == settings.end()) return;
  if (value_text(impl->second.value) != "none" || value_text(modules->second.value).empty()) return;
  notes.push_back(note(GraphRule::modules_cleared,
                       fmt::format("{} was cleared because {}", shown(*modules), shown(*impl))));
  settings.erase(modules);
}

void drop_overruled_details(Settings& settings, Notes& notes) {
  clear_modules_without_graphs(settings, notes);
  drop_if_overruled(
      settings, notes, "graph.modules", "graph.impl",
      [](const std::string& modules, const std::string& impl) { return modules.empty() || impl == "layer"; });
  drop_if_overruled(settings, notes, "graph.optimizer", "graph.impl",
                    [](const std::string& optimizer, const std::string& impl) {
                      return optimizer == "eager" || impl == "full_iteration" ||
                             (optimizer == "separate" && impl == "layer");
                    });
}

/// The setting that decides what the model consists of and is stronger than `detail`, or the end.
Settings::const_iterator stronger_decision(const Settings& settings, const Setting& detail) {
  constexpr std::array<std::string_view, 8> decisions = {
      "model.position", "model.activation", "model.router_score", "model.rope_factor",
      "model.experts",  "model.pattern",    "model.layers",       "model.family"};
  for (const std::string_view decision : decisions)
    if (const auto found = settings.find(decision);
        found != settings.end() && found->second.strength > detail.strength)
      return found;
  return settings.end();
}

/// A model detail about something that the model does not have gives way likewise, and is an error otherwise.
void drop_meaningless_details(Configuration& configuration, Settings& settings, Notes& notes) {
  for (const Key& key : key_table()) {
    const auto detail = settings.find(key.name);
    if (detail == settings.end() || has_meaning(key, configuration.model)) continue;
    const Value neutral = neutral_value(key);
    if (detail->second.value != neutral) {
      const auto decision = stronger_decision(settings, detail->second);
      if (decision == settings.end())
        throw ConfigurationError(fmt::format("{} ({}) has no meaning for this model: it is about {}",
                                             key.name, detail->second.source, key.subject->name));
      notes.push_back(note(GraphRule::detail_overruled,
                           fmt::format("{} was dropped because {}", shown(*detail), shown(*decision))));
    }
    key.assign(configuration, neutral);
    settings.erase(detail);
  }
}

void add_notes(const Configuration& configuration, Notes& notes) {
  const GraphConfiguration& graph = configuration.graph;
  if (graph.impl != GraphImplementation::none && graph.warmup_steps == 0)
    notes.push_back(note(GraphRule::no_warmup, "graph.warmup_steps = 0"));
  if (graph.impl == GraphImplementation::none && graph.validate_every > 0)
    notes.push_back(note(
        GraphRule::validation_without_graphs,
        fmt::format("graph.validate_every = {} has no effect with graph.impl = none", graph.validate_every)));
}

}  // namespace

ConfigurationSources::ConfigurationSources() : state_(std::make_unique<State>()) {}
ConfigurationSources::~ConfigurationSources() = default;
ConfigurationSources::ConfigurationSources(const ConfigurationSources& other)
    : state_(std::make_unique<State>(*other.state_)) {}
ConfigurationSources::ConfigurationSources(ConfigurationSources&&) noexcept = default;
ConfigurationSources& ConfigurationSources::operator=(ConfigurationSources other) noexcept {
  state_ = std::move(other.state_);
  return *this;
}

ConfigurationSources& ConfigurationSources::preset(std::string_view name) {
  const Preset& chosen = model::preset(name);
  if (state_->preset && *state_->preset != name)
    throw ConfigurationError(fmt::format("two presets, {} and {}: choose one", *state_->preset, chosen.name));
  state_->preset = chosen.name;
  const std::string source = fmt::format("preset {}", chosen.name);
  for (const PresetSetting& setting : chosen.settings)
    state_->set(setting.key, setting.value, Strength::preset, source);
  return *this;
}

ConfigurationSources& ConfigurationSources::checkpoint(const ModelConfiguration& model,
                                                       std::string_view source) {
  check(model);
  Configuration configuration;
  configuration.model = model;
  for (const Key& key : key_table())
    if (key.name.starts_with("model.") && has_meaning(key, model))
      state_->put(state_->settings, key.name,
                  Setting{key.read(configuration), Strength::checkpoint, std::string(source)});
  return *this;
}

ConfigurationSources& ConfigurationSources::file(const std::filesystem::path& path) {
  constexpr std::size_t most_bytes = 1 << 20;
  return json(read_text_file(path, most_bytes), fmt::format("configuration file {}", path_in_quotes(path)));
}

ConfigurationSources& ConfigurationSources::json(std::string_view text, std::string_view source) {
  try {
    std::set<std::string> seen;
    state_->set_section(parse_json_object(text), {}, seen, source);
  } catch (const JsonProblem& problem) {
    throw ConfigurationError(fmt::format("{} {}", source, problem.what()));
  }
  return *this;
}

ConfigurationSources& ConfigurationSources::assignment(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0)
    throw ConfigurationError(fmt::format("--set {} is not of the form key=value", in_quotes(text)));
  state_->set(text.substr(0, equals), text.substr(equals + 1), Strength::assignment, "--set");
  return *this;
}

ConfigurationSources& ConfigurationSources::flag(std::string_view key, std::string_view value,
                                                 std::string_view flag) {
  state_->set(key, value, Strength::flag, flag);
  return *this;
}

bool ConfigurationSources::sets(std::string_view key) const {
  return state_->settings.contains(key) || state_->megatron.contains(key);
}

ResolvedConfiguration ConfigurationSources::resolve() const {
  Settings settings = state_->settings;
  ResolvedConfiguration resolved;
  translate_megatron(state_->megatron, settings, resolved.notes);
  drop_overruled_details(settings, resolved.notes);
  Configuration& configuration = resolved.configuration;
  for (const Key& key : key_table())
    if (const auto found = settings.find(key.name); found != settings.end())
      key.assign(configuration, found->second.value);
  apply_defaults(configuration, settings);
  drop_meaningless_details(configuration, settings, resolved.notes);
  check(configuration);
  add_notes(configuration, resolved.notes);
  for (const Key& key : key_table()) {
    const auto found = settings.find(key.name);
    resolved.entries.push_back({std::string(key.name), value_text(key.read(configuration)),
                                found == settings.end() ? "default" : found->second.source,
                                has_meaning(key, configuration.model)});
  }
  return resolved;
}

std::string to_json(const Configuration& configuration) {
  nlohmann::ordered_json document = nlohmann::ordered_json::object();
  for (const Key& key : key_table()) {
    if (!has_meaning(key, configuration.model)) continue;
    const std::size_t dot = key.name.find('.');
    const bool in_section = dot != std::string_view::npos;
    nlohmann::ordered_json& section = in_section ? document[std::string(key.name.substr(0, dot))] : document;
    std::visit(
        [&](const auto& value) { section[std::string(key.name.substr(in_section ? dot + 1 : 0))] = value; },
        key.read(configuration));
  }
  return document.dump(2);
}

std::vector<MegatronSpelling> megatron_spellings() {
  std::vector<MegatronSpelling> spellings;
  for (const MegatronKey& key : megatron_keys())
    spellings.push_back({std::string(key.name), std::string(key.meaning)});
  return spellings;
}

std::vector<KeyDescription> configuration_keys() {
  std::vector<KeyDescription> descriptions;
  for (const Key& key : key_table())
    descriptions.push_back(
        {std::string(key.name), allowed_values(key), std::string(key.fallback), std::string(key.help)});
  return descriptions;
}

}  // namespace encore::model
