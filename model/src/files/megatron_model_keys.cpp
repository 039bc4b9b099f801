// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "megatron_translation.hpp"

namespace encore::model {
namespace {

using Entry = MegatronTranslation::Entry;

/// Megatron's softmax is over the chosen experts unless it comes before the choice, and then the weights stay as
/// they are.
void translate_score(MegatronTranslation& translation) {
  const Entry* const score = translation.find("moe_router_score_function");
  const Entry* const before = translation.find("moe_router_pre_softmax");
  const bool before_choice = translation.find_true("moe_router_pre_softmax") != nullptr;
  for (const Entry* const entry : {score, before}) {
    translation.require_one_form(entry, "model.router_score", GraphRule::two_forms);
    translation.require_one_form(entry, "model.router_renormalize", GraphRule::two_forms);
  }
  if (score != nullptr && score->second.text == "sigmoid") {
    if (before_choice)
      throw ConfigurationError(
          fmt::format("{} has no meaning with {}: leave it out", shown(*before), shown(*score)));
    translation.set("model.router_score", "sigmoid", *score);
    return;
  }
  if (score != nullptr && score->second.text != "softmax")
    throw ConfigurationError(fmt::format("{} must be softmax or sigmoid", shown(*score)));
  if (const Entry* const entry = score != nullptr ? score : before)
    translation.set("model.router_score", before_choice ? "softmax" : "softmax_of_largest", *entry);
  if (before_choice) translation.set("model.router_renormalize", "false", *before);
}

/// There it may be above 1, because a rank can get more than its even share; here one rank gets all rows.
void translate_budget(MegatronTranslation& translation) {
  const Entry* const entry = translation.find("moe_expert_rank_capacity_factor");
  if (entry == nullptr) return;
  translation.require_one_form(entry, "train.expert_budget", GraphRule::two_forms);
  Key key = *find_key("train.expert_budget");
  key.name = entry->first;
  key.range = {.minimum = 0, .maximum = 1e6, .minimum_excluded = true};
  const double factor = std::get<double>(parse_value(key, entry->second.text, entry->second.source));
  translation.set("train.expert_budget", fmt::format("{}", std::min(factor, 1.0)), *entry);
}

}  // namespace

void translate_model_keys(MegatronTranslation& translation) {
  if (const Entry* const experts = translation.find_one({"num_experts", "num_moe_experts"}))
    translate_plain(translation, experts->first, "model.experts");
  constexpr std::array<std::pair<std::string_view, std::string_view>, 18> names = {{
      {"moe_router_topk", "model.topk"},
      {"moe_ffn_hidden_size", "model.expert_ffn"},
      {"moe_shared_expert_intermediate_size", "model.shared_ffn"},
      {"moe_router_num_groups", "model.router_groups"},
      {"moe_router_group_topk", "model.router_topk_groups"},
      {"moe_router_topk_scaling_factor", "model.router_scale"},
      {"moe_router_enable_expert_bias", "model.expert_bias"},
      {"moe_router_bias_update_rate", "train.expert_bias_rate"},
      {"moe_aux_loss_coeff", "train.balance_loss"},
      {"moe_z_loss_coeff", "train.router_z_loss"},
      {"moe_input_jitter_eps", "train.router_jitter"},
      {"moe_expert_capacity_factor", "train.expert_capacity"},
      {"hybrid_override_pattern", "model.pattern"},
      {"mamba_num_heads", "model.mamba_heads"},
      {"mamba_head_dim", "model.mamba_head_dim"},
      {"mamba_state_dim", "model.mamba_state"},
      {"mamba_num_groups", "model.mamba_groups"},
      {"qk_layernorm", "model.query_key_norm"},
  }};
  for (const auto& [name, key] : names) translate_plain(translation, name, key);
  translate_score(translation);
  translate_budget(translation);
  static_cast<void>(translation.find_true("moe_pad_expert_input_to_capacity"));  // refuses what is neither
}

}  // namespace encore::model
