// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "megatron_translation.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

using Entry = MegatronTranslation::Entry;

/// The names of modules, here and there.
std::string recomputed_modules(const Entry& entry) {
  std::vector<std::string_view> modules;
  std::string_view rest = entry.second.text;
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    if (name != "core_attn" && name != "mlp" && name != "moe")
      refuse(GraphRule::unknown_recompute_module, shown(entry));
    modules.push_back(name == "core_attn" ? "attn" : name);
  }
  return fmt::format("{}", fmt::join(modules, ","));
}

/// Megatron computes groups of layers again from the input of the first; here every layer keeps its own.
void check_recomputed_groups(const MegatronTranslation& translation) {
  const Entry* const method = translation.find("recompute_method");
  const Entry* const layers = translation.find("recompute_num_layers");
  if (method != nullptr && method->second.text != "uniform")
    refuse(GraphRule::recompute_of_layer_groups, shown(*method));
  if (layers != nullptr && layers->second.text != "1")
    refuse(GraphRule::recompute_of_layer_groups, shown(*layers));
}

void translate_selective(MegatronTranslation& translation, const Entry& granularity, const Entry* modules) {
  const std::string names = modules == nullptr ? "attn" : recomputed_modules(*modules);
  const Entry& from = modules == nullptr ? granularity : *modules;
  translation.set("train.recompute", names, from);
  if (names.find("attn") != std::string::npos)
    translation.add_note(GraphRule::whole_attention_recomputed,
                         fmt::format("{} was read as train.recompute = {}", shown(from), names));
}

void translate_recompute(MegatronTranslation& translation) {
  const Entry* const granularity = translation.find("recompute_granularity");
  const Entry* const modules = translation.find("recompute_modules");
  for (const std::string_view name :
       {"recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers"})
    translation.require_one_form(translation.find(name), "train.recompute", GraphRule::two_forms);
  check_recomputed_groups(translation);
  const std::string_view asked = granularity == nullptr ? "" : std::string_view(granularity->second.text);
  if (granularity != nullptr && asked != "full" && asked != "selective")
    throw ConfigurationError(fmt::format("{} must be full or selective", shown(*granularity)));
  if (modules != nullptr && !modules->second.text.empty() && asked != "selective")
    refuse(GraphRule::recompute_modules_without_selective,
           granularity == nullptr ? shown(*modules)
                                  : fmt::format("{} with {}", shown(*modules), shown(*granularity)));
  if (asked == "full") translation.set("train.recompute", "full", *granularity);
  if (asked == "selective") translate_selective(translation, *granularity, modules);
}

/// Layers of one chunk of a pipeline stage, which Megatron can be given instead of the number of chunks.
void translate_layers_of_chunk(MegatronTranslation& translation, const Entry& entry) {
  const std::optional<std::int64_t> layers = translation.whole("model.layers");
  const std::int64_t stages = translation.whole("parallel.pipeline").value_or(1);
  Key key = *find_key("model.layers");
  key.name = entry.first;
  const auto of_chunk = std::get<std::int64_t>(parse_value(key, entry.second.text, entry.second.source));
  if (!layers) return;  // that they are missing is said later
  if (*layers % (stages * of_chunk) != 0)
    refuse(GraphRule::layers_not_divided, fmt::format("{} with model.layers = {} and parallel.pipeline = {}",
                                                      shown(entry), *layers, stages));
  translation.set("parallel.virtual_stages", std::to_string(*layers / (stages * of_chunk)), entry);
}

void translate_virtual_stages(MegatronTranslation& translation) {
  const Entry* const entry =
      translation.find_one({"virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank",
                            "num_layers_per_virtual_pipeline_stage"});
  if (entry == nullptr) return;
  translation.require_one_form(entry, "parallel.virtual_stages", GraphRule::two_forms);
  if (entry->first == "num_layers_per_virtual_pipeline_stage") {
    translate_layers_of_chunk(translation, *entry);
  } else {
    translation.set("parallel.virtual_stages", entry->second.text, *entry);
  }
}

}  // namespace

void translate_training_keys(MegatronTranslation& translation) {
  translate_recompute(translation);
  translate_plain(translation, "delay_wgrad_compute", "train.delay_wgrad");
  translate_plain(translation, "tensor_model_parallel_size", "parallel.tensor");
  translate_plain(translation, "expert_model_parallel_size", "parallel.expert");
  translate_plain(translation, "pipeline_model_parallel_size", "parallel.pipeline");
  translate_virtual_stages(translation);
}

}  // namespace encore::model
