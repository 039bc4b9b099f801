// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>

#include "blocks.hpp"
#include "huggingface_families.hpp"

// Mamba2Config and NemotronHConfig.

namespace encore::model {
namespace {

/// As Python's json module writes it, or as transformers 5 does.
bool is_infinity(const nlohmann::json& value) {
  return value == "Infinity" || value == nlohmann::json{{"__float__", "Infinity"}};
}

/// Mamba2Config: bounds of the time step after softplus.
void read_step_limit(HuggingFaceFields& fields, Settings& settings) {
  constexpr std::string_view field = "time_step_limit";
  const nlohmann::json* const limit = fields.take(field);
  if (limit == nullptr) return;
  const auto is_number = [](const nlohmann::json& value) { return value.is_number() || is_infinity(value); };
  if (!limit->is_array() || limit->size() != 2 || !(*limit)[0].is_number() || !is_number((*limit)[1]))
    fields.refuse(field, "two bounds are expected");
  const auto bound = [&](std::string_view key, const nlohmann::json& value) {
    set(settings, key, parse_value(*find_key(key), value, fmt::format("{} of {}", field, fields.source())));
  };
  bound("model.mamba_step_minimum", (*limit)[0]);
  if (is_infinity((*limit)[1])) return;
  if ((*limit)[1] == 0) fields.refuse(field, "because no time step is at most 0");
  bound("model.mamba_step_maximum", (*limit)[1]);
}

std::int64_t whole_of(const Settings& settings, std::string_view key) {
  return std::get<std::int64_t>(settings.at(std::string(key)).value);
}

constexpr std::int64_t seq_of_mamba2 = 2048;

/// NemotronHConfig: the blocks, in published files as letters and in transformers 5 as words.
std::string nemotron_pattern(HuggingFaceFields& fields) {
  const std::vector<std::string> types = fields.texts("layers_block_type");
  const std::string letters = fields.text("hybrid_override_pattern", {});
  if (types.empty()) {
    if (letters.empty())
      throw ConfigurationError(fmt::format("{} has no hybrid_override_pattern", fields.source()));
    if (letters.find_first_not_of("M*-E") != std::string::npos)
      fields.refuse("hybrid_override_pattern", "only the letters M, *, - and E");
    return letters;
  }
  std::string pattern;
  for (const std::string& type : types) {
    if (type == "linear_attention" || type == "mamba") {
      pattern += letter_of(Block::mamba);
    } else if (type == "full_attention" || type == "attention") {
      pattern += letter_of(Block::attention);
    } else if (type == "mlp") {
      pattern += letter_of(Block::mlp);
    } else if (type == "moe") {
      pattern += letter_of(Block::experts);
    } else {
      fields.refuse("layers_block_type", "only linear_attention, full_attention, mlp, moe");
    }
  }
  if (!letters.empty() && letters != pattern)
    fields.refuse("hybrid_override_pattern", "because layers_block_type says something else");
  return pattern;
}

/// NemotronHMamba2Mixer of transformers takes time_step_min, the range of new time steps, for the lower bound
/// of all of them, has no upper one, and does not look at time_step_limit.
void read_nemotron_step(HuggingFaceFields& fields, Settings& settings) {
  constexpr std::string_view field = "time_step_limit";
  fields.use_or("time_step_min", "model.mamba_step_minimum", 0.001, settings);
  if (fields.take(field) == nullptr) return;
  Settings limit;
  read_step_limit(fields, limit);
  const Value& minimum = settings.at("model.mamba_step_minimum").value;
  const Value& lower = limit.at("model.mamba_step_minimum").value;
  if ((lower != Value(0.0) && lower != minimum) || limit.contains("model.mamba_step_maximum"))
    fields.refuse(field, fmt::format("because transformers bounds the time steps by time_step_min = {} alone",
                                     value_text(minimum)));
}

void read_nemotron_experts(HuggingFaceFields& fields, Settings& settings) {
  fields.use_or("n_routed_experts", "model.experts", std::int64_t{8}, settings);
  fields.use_or("num_experts_per_tok", "model.topk", std::int64_t{2}, settings);
  fields.use_or("moe_intermediate_size", "model.expert_ffn", std::int64_t{7688}, settings);
  fields.use_or("moe_shared_expert_intermediate_size", "model.shared_ffn", std::int64_t{7688}, settings);
  fields.use_or("n_group", "model.router_groups", std::int64_t{1}, settings);
  fields.use_or("topk_group", "model.router_topk_groups", std::int64_t{1}, settings);
  fields.use_or("norm_topk_prob", "model.router_renormalize", true, settings);
  fields.use_or("routed_scaling_factor", "model.router_scale", 1.0, settings);
  fields.expect("n_shared_experts", 1);
}

}  // namespace

Settings read_mamba2(HuggingFaceFields& fields) {
  Settings settings;
  set(settings, "model.seq", seq_of_mamba2);  // there is no field: nothing bounds it
  fields.require("vocab_size", "model.vocab", settings);
  fields.require("hidden_size", "model.hidden", settings);
  fields.require("num_hidden_layers", "model.layers", settings);
  fields.use_or("num_heads", "model.mamba_heads", std::int64_t{128}, settings);
  fields.use_or("head_dim", "model.mamba_head_dim", std::int64_t{64}, settings);
  fields.use_or("state_size", "model.mamba_state", std::int64_t{128}, settings);
  fields.use_or("n_groups", "model.mamba_groups", std::int64_t{8}, settings);
  fields.use_or("conv_kernel", "model.mamba_convolution", std::int64_t{4}, settings);
  fields.use_or("chunk_size", "model.mamba_chunk", std::int64_t{256}, settings);
  fields.use("use_bias", "model.mamba_bias", settings);
  fields.use("use_conv_bias", "model.mamba_convolution_bias", settings);
  fields.use("layer_norm_epsilon", "model.norm_epsilon", settings);
  fields.use_or("initializer_range", "model.initializer_range", 0.1, settings);
  fields.use("tie_word_embeddings", "model.tie_embeddings", settings);
  read_step_limit(fields, settings);
  fields.expect("hidden_act", "silu");
  fields.expect("rms_norm", true);
  // The gate comes before the norm whatever norm_before_gate says; the others are about new weights.
  fields.ignore("time_step_min", "norm_before_gate", "time_step_init_scheme", "time_step_scale");
  const std::int64_t inner =
      whole_of(settings, "model.mamba_heads") * whole_of(settings, "model.mamba_head_dim");
  const std::string reason = fmt::format("because num_heads times head_dim is {}", inner);
  if (fields.take("expand") != nullptr &&
      inner != fields.whole("expand", 0) * whole_of(settings, "model.hidden"))
    fields.refuse("expand", reason);
  if (inner != fields.whole("intermediate_size", inner)) fields.refuse("intermediate_size", reason);
  return settings;
}

nlohmann::ordered_json mamba2_fields(const ModelConfiguration& model) {
  nlohmann::ordered_json fields = {{"vocab_size", model.vocab},
                                   {"hidden_size", model.hidden},
                                   {"num_hidden_layers", model.layers},
                                   {"num_heads", model.mamba_heads},
                                   {"head_dim", model.mamba_head_dim},
                                   {"expand", model.mamba_heads * model.mamba_head_dim / model.hidden},
                                   {"state_size", model.mamba_state},
                                   {"n_groups", model.mamba_groups},
                                   {"conv_kernel", model.mamba_convolution},
                                   {"chunk_size", model.mamba_chunk},
                                   {"use_bias", model.mamba_bias},
                                   {"use_conv_bias", model.mamba_convolution_bias},
                                   {"hidden_act", "silu"},
                                   {"layer_norm_epsilon", model.norm_epsilon},
                                   {"initializer_range", model.initializer_range},
                                   {"tie_word_embeddings", model.tie_embeddings}};
  if (model.mamba_step_maximum != 0)
    fields["time_step_limit"] = {model.mamba_step_minimum, model.mamba_step_maximum};
  else if (model.mamba_step_minimum != 0)
    fields["time_step_limit"] = {model.mamba_step_minimum, {{"__float__", "Infinity"}}};
  return fields;
}

Settings read_nemotron_h(HuggingFaceFields& fields) {
  Settings settings;
  const std::string pattern = nemotron_pattern(fields);
  set(settings, "model.pattern", shortest_stretch(pattern));
  fields.use_or("num_hidden_layers", "model.layers", std::ssize(pattern), settings);
  if (whole_of(settings, "model.layers") != std::ssize(pattern))
    fields.refuse("num_hidden_layers", fmt::format("because there are {} blocks", pattern.size()));
  fields.require("vocab_size", "model.vocab", settings);
  fields.require("hidden_size", "model.hidden", settings);
  fields.use_or("max_position_embeddings", "model.seq", std::int64_t{4096}, settings);
  fields.use_or("num_attention_heads", "model.heads", std::int64_t{32}, settings);
  fields.use_or("num_key_value_heads", "model.kv_heads", std::int64_t{8}, settings);
  fields.use_or("attention_head_dim", "model.head_dim", std::int64_t{128}, settings);
  fields.use("head_dim", "model.head_dim", settings);
  const std::int64_t key_value_heads = whole_of(settings, "model.kv_heads");
  if (fields.whole("num_query_groups", key_value_heads) != key_value_heads)
    fields.refuse("num_query_groups", fmt::format("because num_key_value_heads is {}", key_value_heads));
  fields.use("attention_dropout", "model.attention_dropout", settings);
  fields.expect("attention_bias", false);
  fields.use_or("intermediate_size", "model.ffn", std::int64_t{21504}, settings);
  fields.expect("mlp_hidden_act", "relu2");
  fields.use("mlp_bias", "model.mlp_bias", settings);
  fields.use_or("mamba_num_heads", "model.mamba_heads", std::int64_t{128}, settings);
  fields.use_or("mamba_head_dim", "model.mamba_head_dim", std::int64_t{64}, settings);
  fields.use_or("ssm_state_size", "model.mamba_state", std::int64_t{128}, settings);
  fields.use_or("n_groups", "model.mamba_groups", std::int64_t{8}, settings);
  fields.use_or("conv_kernel", "model.mamba_convolution", std::int64_t{4}, settings);
  fields.use_or("chunk_size", "model.mamba_chunk", std::int64_t{128}, settings);
  fields.use("use_bias", "model.mamba_bias", settings);
  fields.use("use_conv_bias", "model.mamba_convolution_bias", settings);
  fields.expect("mamba_hidden_act", "silu");
  read_nemotron_step(fields, settings);
  // The model has no rotary positions, and every norm has layer_norm_epsilon.
  fields.ignore("mamba_proj_bias", "expand", "rms_norm_eps", "norm_eps", "rope_theta",
                "partial_rotary_factor");
  fields.use("layer_norm_epsilon", "model.norm_epsilon", settings);
  fields.use("initializer_range", "model.initializer_range", settings);
  fields.use("tie_word_embeddings", "model.tie_embeddings", settings);
  fields.expect("hidden_dropout", 0);
  fields.expect("num_nextn_predict_layers", 0);
  Settings experts;
  read_nemotron_experts(fields, experts);
  if (pattern.find(letter_of(Block::experts)) != std::string::npos) settings.merge(experts);
  return settings;
}

nlohmann::ordered_json nemotron_h_fields(const ModelConfiguration& model) {
  // A window, which the format has no word for, is told apart.
  std::string pattern = whole_pattern(model);
  std::ranges::replace(pattern, letter_of(Block::windowed_attention), letter_of(Block::attention));
  nlohmann::ordered_json fields = {{"vocab_size", model.vocab},
                                   {"hidden_size", model.hidden},
                                   {"num_hidden_layers", model.layers},
                                   {"hybrid_override_pattern", pattern},
                                   {"max_position_embeddings", model.seq},
                                   {"mlp_hidden_act", "relu2"},
                                   {"mlp_bias", model.mlp_bias},
                                   {"mamba_hidden_act", "silu"},
                                   {"layer_norm_epsilon", model.norm_epsilon},
                                   {"initializer_range", model.initializer_range},
                                   {"tie_word_embeddings", model.tie_embeddings}};
  if (has_attention(model))
    fields.update({{"num_attention_heads", model.heads},
                   {"num_key_value_heads", model.kv_heads},
                   {"head_dim", model.head_dim},
                   {"attention_dropout", model.attention_dropout}});
  if (has_block(model, Block::mlp)) fields["intermediate_size"] = model.ffn;
  if (has_block(model, Block::mamba))
    fields.update({{"mamba_num_heads", model.mamba_heads},
                   {"mamba_head_dim", model.mamba_head_dim},
                   {"ssm_state_size", model.mamba_state},
                   {"n_groups", model.mamba_groups},
                   {"conv_kernel", model.mamba_convolution},
                   {"chunk_size", model.mamba_chunk},
                   {"use_bias", model.mamba_bias},
                   {"use_conv_bias", model.mamba_convolution_bias},
                   {"time_step_min", model.mamba_step_minimum}});
  if (has_block(model, Block::experts))
    fields.update({{"n_routed_experts", model.experts},
                   {"num_experts_per_tok", model.topk},
                   {"moe_intermediate_size", model.expert_ffn},
                   // Without a shared expert transformers would take another width for it.
                   {"moe_shared_expert_intermediate_size", std::max(model.shared_ffn, std::int64_t{1})},
                   {"n_group", model.router_groups},
                   {"topk_group", model.router_topk_groups},
                   {"norm_topk_prob", model.router_renormalize},
                   {"routed_scaling_factor", model.router_scale}});
  return fields;
}

}  // namespace encore::model
