// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megatron_translation.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

constexpr std::array keys = {
    MegatronKey{"cuda_graph_impl", MegatronKind::text,
                "graph.impl: none, local or transformer_engine (both: layer), full_iteration"},
    MegatronKey{"cuda_graph_scope", MegatronKind::texts,
                "graph.modules; full: whole layers; full_iteration: graph.impl"},
    MegatronKey{"cuda_graph_modules", MegatronKind::texts, "the same, its newer name"},
    MegatronKey{"cuda_graph_warmup_steps", MegatronKind::number, "graph.warmup_steps"},
    MegatronKey{"enable_cuda_graph", MegatronKind::truth, "true: cuda_graph_impl = local"},
    MegatronKey{"external_cuda_graph", MegatronKind::truth, "true: cuda_graph_impl = transformer_engine"},
    MegatronKey{"inference_cuda_graph_scope", MegatronKind::text, "none; a training records no inference"},
    MegatronKey{"te_rng_tracker", MegatronKind::truth,
                "ignored: random positions lie in device memory anyway"},
    MegatronKey{"use_te_rng_tracker", MegatronKind::truth, "the same"},
    MegatronKey{"recompute_granularity", MegatronKind::text,
                "train.recompute: full, or selective with recompute_modules"},
    MegatronKey{"recompute_modules", MegatronKind::texts,
                "train.recompute: core_attn (attn; what selective means alone), mlp, moe"},
    MegatronKey{"recompute_method", MegatronKind::text, "uniform"},
    MegatronKey{"recompute_num_layers", MegatronKind::number, "1"},
    MegatronKey{"delay_wgrad_compute", MegatronKind::truth, "train.delay_wgrad"},
    MegatronKey{"tensor_model_parallel_size", MegatronKind::number, "parallel.tensor"},
    MegatronKey{"expert_model_parallel_size", MegatronKind::number, "parallel.expert"},
    MegatronKey{"pipeline_model_parallel_size", MegatronKind::number, "parallel.pipeline"},
    MegatronKey{"virtual_pipeline_model_parallel_size", MegatronKind::number, "parallel.virtual_stages"},
    MegatronKey{"num_virtual_stages_per_pipeline_rank", MegatronKind::number, "the same"},
    MegatronKey{"num_layers_per_virtual_pipeline_stage", MegatronKind::number,
                "parallel.virtual_stages: model.layers / parallel.pipeline / this"},
    MegatronKey{"num_moe_experts", MegatronKind::number, "model.experts"},
    MegatronKey{"num_experts", MegatronKind::number, "the same, as an argument"},
    MegatronKey{"moe_router_topk", MegatronKind::number, "model.topk"},
    MegatronKey{"moe_ffn_hidden_size", MegatronKind::number, "model.expert_ffn"},
    MegatronKey{"moe_shared_expert_intermediate_size", MegatronKind::number, "model.shared_ffn"},
    MegatronKey{
        "moe_router_score_function", MegatronKind::text,
        "model.router_score: sigmoid, or softmax (softmax_of_largest, or as moe_router_pre_softmax says)"},
    MegatronKey{"moe_router_pre_softmax", MegatronKind::truth,
                "true: model.router_score = softmax and model.router_renormalize = false; false: "
                "model.router_score = softmax_of_largest"},
    MegatronKey{"moe_router_num_groups", MegatronKind::number, "model.router_groups"},
    MegatronKey{"moe_router_group_topk", MegatronKind::number, "model.router_topk_groups"},
    MegatronKey{"moe_router_topk_scaling_factor", MegatronKind::real, "model.router_scale"},
    MegatronKey{"moe_router_enable_expert_bias", MegatronKind::truth, "model.expert_bias"},
    MegatronKey{"moe_router_bias_update_rate", MegatronKind::real, "train.expert_bias_rate"},
    MegatronKey{"moe_aux_loss_coeff", MegatronKind::real, "train.balance_loss"},
    MegatronKey{"moe_z_loss_coeff", MegatronKind::real, "train.router_z_loss"},
    MegatronKey{"moe_input_jitter_eps", MegatronKind::real, "train.router_jitter"},
    MegatronKey{"moe_expert_capacity_factor", MegatronKind::real, "train.expert_capacity"},
    MegatronKey{"moe_expert_rank_capacity_factor", MegatronKind::real, "train.expert_budget, at most 1"},
    MegatronKey{"moe_pad_expert_input_to_capacity", MegatronKind::truth,
                "ignored: rows beyond an expert's own are neither read nor written"},
    MegatronKey{"hybrid_override_pattern", MegatronKind::text, "model.pattern"},
    MegatronKey{"mamba_num_heads", MegatronKind::number, "model.mamba_heads"},
    MegatronKey{"mamba_head_dim", MegatronKind::number, "model.mamba_head_dim"},
    MegatronKey{"mamba_state_dim", MegatronKind::number, "model.mamba_state"},
    MegatronKey{"mamba_num_groups", MegatronKind::number, "model.mamba_groups"},
    MegatronKey{"qk_layernorm", MegatronKind::truth, "model.query_key_norm"},
};

using Entry = MegatronTranslation::Entry;

void note_random_tracker(MegatronTranslation& translation) {
  for (const std::string_view name : {"te_rng_tracker", "use_te_rng_tracker"}) {
    static_cast<void>(translation.find_true(name));  // refuses what is neither true nor false
    if (const Entry* const entry = translation.find(name))
      translation.add_note(GraphRule::random_tracker, fmt::format("{} was ignored", shown(*entry)));
  }
}

}  // namespace

std::string shown(const Entry& entry) {
  return fmt::format("{} = {} ({})", entry.first, in_quotes(entry.second.text), entry.second.source);
}

const Entry* MegatronTranslation::find(std::string_view name) const {
  const auto found = megatron_.find(name);
  return found == megatron_.end() ? nullptr : &*found;
}

const Entry* MegatronTranslation::find_true(std::string_view name) const {
  const Entry* const entry = find(name);
  if (entry == nullptr || entry->second.text == "false") return nullptr;
  if (entry->second.text != "true")
    throw ConfigurationError(fmt::format("{} must be true or false", shown(*entry)));
  return entry;
}

const Entry* MegatronTranslation::find_one(std::initializer_list<std::string_view> names) const {
  const Entry* one = nullptr;
  for (const std::string_view name : names) {
    const Entry* const entry = find(name);
    if (one != nullptr && entry != nullptr)
      refuse(GraphRule::two_forms, fmt::format("{} and {}", shown(*one), shown(*entry)));
    if (entry != nullptr) one = entry;
  }
  return one;
}

void MegatronTranslation::require_one_form(const Entry* megatron, std::string_view key,
                                           GraphRule rule) const {
  if (megatron == nullptr) return;
  const auto found = settings_.find(key);
  if (found == settings_.end() || found->second.strength < Strength::file) return;
  refuse(rule, fmt::format("{} and {} = {} ({})", shown(*megatron), key, value_text(found->second.value),
                           found->second.source));
}

void MegatronTranslation::set(std::string_view key, std::string_view text, const Entry& from) {
  const auto& [name, setting] = from;
  Key as_written = *find_key(key);
  as_written.name = name;
  settings_.insert_or_assign(std::string(key), Setting{parse_value(as_written, text, setting.source),
                                                       setting.strength, setting.source});
}

std::optional<std::int64_t> MegatronTranslation::whole(std::string_view key) const {
  const auto found = settings_.find(key);
  return found == settings_.end() ? std::nullopt : std::optional(std::get<std::int64_t>(found->second.value));
}

void MegatronTranslation::add_note(GraphRule rule, const std::string& what) {
  notes_.push_back(note(rule, what));
}

void translate_plain(MegatronTranslation& translation, std::string_view name, std::string_view key) {
  const Entry* const entry = translation.find(name);
  if (entry == nullptr) return;
  translation.require_one_form(entry, key, GraphRule::two_forms);
  translation.set(key, entry->second.text, *entry);
}

std::span<const MegatronKey> megatron_keys() { return keys; }

const MegatronKey* find_megatron_key(std::string_view name) {
  const auto found = std::ranges::find(keys, name, &MegatronKey::name);
  return found == keys.end() ? nullptr : &*found;
}

void translate_megatron(const MegatronSettings& megatron, Settings& settings,
                        std::vector<std::string>& notes) {
  MegatronTranslation translation(megatron, settings, notes);
  translate_graph_keys(translation);
  translate_training_keys(translation);
  translate_model_keys(translation);
  translate_plain(translation, "cuda_graph_warmup_steps", "graph.warmup_steps");
  note_random_tracker(translation);
}

}  // namespace encore::model
