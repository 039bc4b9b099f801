// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "configuration_settings.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

constexpr std::string_view impl_key = "cuda_graph_impl";
constexpr std::string_view scope_key = "cuda_graph_scope";
constexpr std::string_view modules_key = "cuda_graph_modules";
constexpr std::string_view warmup_key = "cuda_graph_warmup_steps";

using Entry = MegatronSettings::value_type;

const Entry* find(const MegatronSettings& megatron, std::string_view key) {
  const auto found = megatron.find(key);
  return found == megatron.end() ? nullptr : &*found;
}

std::string shown(const Entry& entry) {
  return fmt::format("{} = {} ({})", entry.first, in_quotes(entry.second.text), entry.second.source);
}

/// A preset's value gives way to Megatron's key; one that the same person wrote does not.
void require_one_form(const Entry* old_form, std::string_view key, const Settings& settings) {
  if (old_form == nullptr) return;
  const auto found = settings.find(key);
  if (found == settings.end() || found->second.strength < Strength::file) return;
  throw ConfigurationError(fmt::format("{} and {} ({}) set the same thing: keep one of them",
                                       shown(*old_form), key, found->second.source));
}

void set(Settings& settings, std::string_view key, std::string_view text, const MegatronSetting& from) {
  settings.insert_or_assign(
      std::string(key), Setting{parse_value(*find_key(key), text, from.source), from.strength, from.source});
}

/// What cuda_graph_scope or cuda_graph_modules asks for.
struct Scope {
  bool full_iteration = false;
  std::string modules;
};

Scope understood(const Entry& entry) {
  const std::string& text = entry.second.text;
  for (const std::string_view alone : {"full", "full_iteration"}) {
    const std::string padded = fmt::format(",{},", text);
    if (padded.find(fmt::format(",{},", alone)) != std::string::npos && text != alone)
      throw ConfigurationError(fmt::format("{}: {} cannot stand beside other modules", shown(entry), alone));
  }
  if (text == "full_iteration") return {.full_iteration = true, .modules = {}};
  // `full` is the older name for whole layers, which an empty list means.
  return {.full_iteration = false, .modules = text == "full" ? "" : text};
}

void translate_impl_and_scope(const Entry* impl, const Entry* scope, Settings& settings) {
  if (impl == nullptr)
    throw ConfigurationError(fmt::format("{} needs cuda_graph_impl beside it", shown(*scope)));
  const std::string& name = impl->second.text;
  constexpr std::array<std::string_view, 4> known = {"none", "local", "transformer_engine", "full_iteration"};
  if (std::ranges::find(known, name) == known.end())
    throw ConfigurationError(
        fmt::format("{} must be one of none, local, transformer_engine, full_iteration", shown(*impl)));
  const Scope wanted = scope == nullptr ? Scope{} : understood(*scope);
  const bool names_modules = scope != nullptr && !wanted.full_iteration && !scope->second.text.empty();
  if (scope != nullptr && name == "none" && !scope->second.text.empty())
    throw ConfigurationError(
        fmt::format("{} has no meaning with {}: leave it out", shown(*scope), shown(*impl)));
  if (wanted.full_iteration && name == "transformer_engine")
    throw ConfigurationError(fmt::format("{} contradicts {}: use cuda_graph_impl = full_iteration alone",
                                         shown(*scope), shown(*impl)));
  if (names_modules && name == "full_iteration")
    throw ConfigurationError(fmt::format("{} has no meaning with {}: the whole iteration is recorded",
                                         shown(*scope), shown(*impl)));
  const bool full_iteration = name == "full_iteration" || wanted.full_iteration;
  set(settings, "graph.impl",
      name == "none"   ? "none"
      : full_iteration ? "full_iteration"
                       : "layer",
      impl->second);
  if (scope != nullptr) set(settings, "graph.modules", wanted.modules, scope->second);
}

}  // namespace

bool is_megatron_key(std::string_view name) {
  constexpr std::array keys = {impl_key, scope_key, modules_key, warmup_key};
  return std::ranges::find(keys, name) != keys.end();
}

void translate_megatron(const MegatronSettings& megatron, Settings& settings) {
  const Entry* const impl = find(megatron, impl_key);
  const Entry* const old_scope = find(megatron, scope_key);
  const Entry* const modules = find(megatron, modules_key);
  const Entry* const warmup = find(megatron, warmup_key);
  if (old_scope != nullptr && modules != nullptr)
    throw ConfigurationError(
        fmt::format("{} and {} set the same thing: keep one of them", shown(*old_scope), shown(*modules)));
  const Entry* const scope = old_scope != nullptr ? old_scope : modules;
  for (const std::string_view key : {"graph.impl", "graph.modules"}) {
    require_one_form(impl, key, settings);
    require_one_form(scope, key, settings);
  }
  require_one_form(warmup, "graph.warmup_steps", settings);
  if (impl != nullptr || scope != nullptr) translate_impl_and_scope(impl, scope, settings);
  if (warmup != nullptr) set(settings, "graph.warmup_steps", warmup->second.text, warmup->second);
}

}  // namespace encore::model
