// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megatron_translation.hpp"

namespace encore::model {
namespace {

using Entry = MegatronTranslation::Entry;

constexpr std::array<std::string_view, 4> implementations = {"none", "local", "transformer_engine",
                                                             "full_iteration"};

/// What decides the kind of recording: one of Megatron's names, and which kind it asks for.
struct Implementation {
  const Entry* entry = nullptr;
  std::string_view name;
};

Implementation implementation_of(const MegatronTranslation& translation) {
  const Entry* const impl = translation.find("cuda_graph_impl");
  const Entry* const enabled = translation.find_true("enable_cuda_graph");
  const Entry* const external = translation.find_true("external_cuda_graph");
  for (const auto& [one, other] : {std::pair(enabled, external), {enabled, impl}, {external, impl}})
    if (one != nullptr && other != nullptr)
      refuse(GraphRule::legacy_flag_beside_implementation,
             fmt::format("{} and {}", shown(*one), shown(*other)));
  for (const Entry* const legacy : {enabled, external})
    translation.require_one_form(legacy, "graph.impl", GraphRule::legacy_flag_beside_implementation);
  translation.require_one_form(impl, "graph.impl", GraphRule::two_forms);
  if (enabled != nullptr) return {enabled, "local"};
  if (external != nullptr) return {external, "transformer_engine"};
  if (impl == nullptr) return {};
  const std::string& name = impl->second.text;
  if (std::ranges::find(implementations, name) == implementations.end())
    refuse(GraphRule::unknown_implementation, shown(*impl), did_you_mean(name, implementations));
  return {impl, name};
}

bool holds(std::string_view list, std::string_view name) {
  return fmt::format(",{},", list).find(fmt::format(",{},", name)) != std::string::npos;
}

/// Throws unless the older names in a scope stand alone.
void check_older_names(const Entry& scope) {
  const std::string& text = scope.second.text;
  if (holds(text, "full_iteration") && text != "full_iteration")
    refuse(GraphRule::full_iteration_beside_modules, shown(scope));
  if (holds(text, "full_iteration_inference")) refuse(GraphRule::inference_scope, shown(scope));
  if (holds(text, "full") && text != "full") refuse(GraphRule::full_beside_modules, shown(scope));
}

void translate_full_iteration(MegatronTranslation& translation, const Entry& scope,
                              const Implementation& implementation) {
  if (implementation.name == "transformer_engine")
    refuse(GraphRule::full_iteration_of_transformer_engine,
           fmt::format("{} with {}", shown(scope), shown(*implementation.entry)));
  translation.set("graph.impl", "full_iteration", scope);
  translation.add_note(GraphRule::older_spelling,
                       fmt::format("{} was read as graph.impl = full_iteration", shown(scope)));
}

void translate_modules(MegatronTranslation& translation, const Entry& scope,
                       const Implementation& implementation) {
  const std::string& text = scope.second.text;
  if (implementation.entry == nullptr && text.empty()) return;
  if (implementation.entry == nullptr) refuse(GraphRule::modules_without_implementation, shown(scope));
  if (implementation.name == "full_iteration" && !text.empty())
    refuse(GraphRule::modules_without_layer,
           fmt::format("{} with {}", shown(scope), shown(*implementation.entry)));
  translation.set("graph.modules", text == "full" ? "" : text, scope);
  if (text == "full" && implementation.name != "none")
    translation.add_note(GraphRule::older_spelling,
                         fmt::format("{} was read as an empty graph.modules, whole layers", shown(scope)));
}

void check_inference_scope(const MegatronTranslation& translation) {
  const Entry* const scope = translation.find("inference_cuda_graph_scope");
  if (scope == nullptr || scope->second.text == "none") return;
  refuse(GraphRule::inference_scope, shown(*scope));
}

void add_notes(MegatronTranslation& translation, const Implementation& implementation, bool full_iteration) {
  const Entry& entry = *implementation.entry;
  const bool local = implementation.name == "local" && !full_iteration;
  if (entry.first != "cuda_graph_impl")
    translation.add_note(GraphRule::older_spelling, fmt::format("{} was read as cuda_graph_impl = {}",
                                                                shown(entry), implementation.name));
  if (local && translation.find("inference_cuda_graph_scope") == nullptr)
    translation.add_note(GraphRule::local_without_inference,
                         fmt::format("{} records training alone", shown(entry)));
}

}  // namespace

void translate_graph_keys(MegatronTranslation& translation) {
  const Implementation implementation = implementation_of(translation);
  const Entry* const scope = translation.find_one({"cuda_graph_scope", "cuda_graph_modules"});
  for (const Entry* const entry : {implementation.entry, scope}) {
    translation.require_one_form(entry, "graph.impl", GraphRule::two_forms);
    translation.require_one_form(entry, "graph.modules", GraphRule::two_forms);
  }
  if (scope != nullptr) check_older_names(*scope);
  check_inference_scope(translation);
  const bool full_iteration = scope != nullptr && scope->second.text == "full_iteration";
  if (implementation.entry != nullptr) {
    add_notes(translation, implementation, full_iteration);
    translation.set("graph.impl",
                    implementation.name == "none" || implementation.name == "full_iteration"
                        ? implementation.name
                        : "layer",
                    *implementation.entry);
  }
  if (scope == nullptr) return;
  if (full_iteration) {
    translate_full_iteration(translation, *scope, implementation);
  } else {
    translate_modules(translation, *scope, implementation);
  }
}

}  // namespace encore::model
