// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "blocks.hpp"
#include "configuration_checks.hpp"
#include "configuration_table.hpp"
#include "parameter_count.hpp"

namespace encore::model {
namespace {

/// What the layers of a family may be.
struct FamilyRules {
  std::string_view family;
  std::string_view first_blocks;   ///< letters that may stand for a layer's first block
  std::string_view second_blocks;  ///< none: layers of one block
  std::vector<Activation> activations;
  std::vector<Position> positions;
};

const FamilyRules& rules_of(std::string_view family) {
  using enum Activation;
  using enum Position;
  static const std::vector<Position> after_rotation = {rope_half_split, rope_interleaved, none};
  static const std::array<FamilyRules, 8> rules = {{
      {"gpt2", "*", "-", {gelu, gelu_tanh}, {learned}},
      {"llama", "*~", "-", {swiglu}, after_rotation},
      {"qwen3", "*~", "-", {swiglu}, after_rotation},
      {"qwen3_moe", "*~", "-E", {swiglu}, after_rotation},
      {"mixtral", "*~", "E", {swiglu}, after_rotation},
      {"gpt_oss", "*~", "E", {swiglu_clamped}, after_rotation},
      {"mamba2", "M", "", {swiglu}, {none}},
      {"nemotron_h", block_letters, "", {relu_squared, swiglu}, {none, rope_half_split, rope_interleaved}},
  }};
  return *std::ranges::find(rules, family, &FamilyRules::family);
}

/// `a, b or c`.
std::string alternatives(const std::vector<std::string>& names) {
  if (names.size() == 1) return names.front();
  return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

std::string letters_text(std::string_view letters) {
  std::vector<std::string> names;
  for (const char letter : letters) names.emplace_back(1, letter);
  return alternatives(names);
}

template <class Enumeration>
void check_one_of(std::string_view key, Enumeration value, const std::vector<Enumeration>& allowed,
                  std::string_view family) {
  if (std::ranges::find(allowed, value) != allowed.end()) return;
  std::vector<std::string> names;
  for (const Enumeration option : allowed) names.emplace_back(name_of(option));
  refuse_model(fmt::format("{} must be {} in the family {}", key, alternatives(names), family));
}

void check_truth(std::string_view key, bool value, bool needed, std::string_view family) {
  if (value != needed) refuse_model(fmt::format("{} must be {} in the family {}", key, needed, family));
}

void check_pattern(const ModelConfiguration& model, const FamilyRules& rules) {
  const std::string pattern = whole_pattern(model);
  const bool two = !rules.second_blocks.empty();
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view allowed = two && i % 2 == 1 ? rules.second_blocks : rules.first_blocks;
    if (allowed.find(pattern[i]) != std::string_view::npos) continue;
    refuse_model(
        two ? fmt::format("model.pattern = {} must be {}, and then {}, for each layer of the family {}",
                          model.pattern, letters_text(rules.first_blocks), letters_text(rules.second_blocks),
                          model.family)
            : fmt::format("model.pattern = {} must be {} for each layer of the family {}", model.pattern,
                          letters_text(rules.first_blocks), model.family));
  }
  if (model.experts > 0 && !has_block(model, Block::experts))
    refuse_model(fmt::format("model.experts = {} needs a letter E in model.pattern = {}", model.experts,
                             model.pattern));
  if (model.experts == 0 && has_block(model, Block::experts))
    refuse_model(fmt::format("the letter E in model.pattern = {} needs model.experts", model.pattern));
}

void check_gpt2(const ModelConfiguration& model) {
  if (model.kv_heads != model.heads)
    refuse_model(fmt::format("model.kv_heads = {} must equal model.heads = {} in the family gpt2",
                             model.kv_heads, model.heads));
  if (model.heads * model.head_dim != model.hidden)
    refuse_model(
        fmt::format("model.heads = {} times model.head_dim = {} must be model.hidden = {} in the family gpt2",
                    model.heads, model.head_dim, model.hidden));
  if (!model.qkv_bias || !model.attention_output_bias || !model.mlp_bias)
    refuse_model(
        "model.qkv_bias, model.attention_output_bias and model.mlp_bias must be true in the family gpt2: its "
        "checkpoints hold every bias");
  check_truth("model.query_key_norm", model.query_key_norm, false, model.family);
  check_truth("model.attention_sinks", model.attention_sinks, false, model.family);
}

void check_attention(const ModelConfiguration& model) {
  if (model.heads % model.kv_heads != 0)
    refuse_model(fmt::format("model.heads = {} must be a multiple of model.kv_heads = {}", model.heads,
                             model.kv_heads));
  constexpr std::int64_t widest = 1 << 22;
  if (model.heads * model.head_dim > widest)
    refuse_model(fmt::format("model.heads = {} times model.head_dim = {} must be at most {}", model.heads,
                             model.head_dim, widest));
  const bool rotates =
      model.position == Position::rope_half_split || model.position == Position::rope_interleaved;
  if (rotates && model.head_dim % 2 != 0)
    refuse_model(
        fmt::format("model.head_dim = {} must be even: rotary positions turn pairs", model.head_dim));
  if (rotates && model.rope_beta_fast < model.rope_beta_slow)
    refuse_model(fmt::format("model.rope_beta_fast = {} must not be below model.rope_beta_slow = {}",
                             model.rope_beta_fast, model.rope_beta_slow));
}

void check_groups(const ModelConfiguration& model) {
  if (model.experts % model.router_groups != 0)
    refuse_model(fmt::format("model.experts = {} must be a multiple of model.router_groups = {}",
                             model.experts, model.router_groups));
  const std::int64_t of_group = model.experts / model.router_groups;
  if (model.router_topk_groups > model.router_groups)
    refuse_model(fmt::format("model.router_topk_groups = {} must not exceed model.router_groups = {}",
                             model.router_topk_groups, model.router_groups));
  if (model.topk > model.router_topk_groups * of_group)
    refuse_model(
        fmt::format("model.topk = {} must not exceed the {} experts of model.router_topk_groups = {} groups",
                    model.topk, model.router_topk_groups * of_group, model.router_topk_groups));
}

void check_experts(const ModelConfiguration& model) {
  if (model.topk > model.experts)
    refuse_model(
        fmt::format("model.topk = {} must not exceed model.experts = {}", model.topk, model.experts));
  check_groups(model);
  // A tensor for each expert in published files; and what makes a list of names harmless to build.
  constexpr std::int64_t most_experts = 1 << 20;
  if (model.layers * model.experts > most_experts)
    refuse_model(fmt::format("model.layers = {} times model.experts = {} must be at most {}", model.layers,
                             model.experts, most_experts));
  const bool gpt_oss = model.family == "gpt_oss";
  check_truth("model.router_bias", model.router_bias, gpt_oss, model.family);
  if (gpt_oss) {
    check_truth("model.mlp_bias", model.mlp_bias, true, model.family);
    check_truth("model.expert_bias", model.expert_bias, false, model.family);
    if (model.shared_ffn != 0)
      refuse_model(fmt::format("model.shared_ffn = {} must be 0 in the family gpt_oss", model.shared_ffn));
  } else if (model.mlp_bias) {
    refuse_model(fmt::format("model.mlp_bias must be false for experts of the family {}", model.family));
  }
}

void check_mamba(const ModelConfiguration& model) {
  if (model.mamba_heads % model.mamba_groups != 0)
    refuse_model(fmt::format("model.mamba_heads = {} must be a multiple of model.mamba_groups = {}",
                             model.mamba_heads, model.mamba_groups));
  const std::int64_t inner = model.mamba_heads * model.mamba_head_dim;
  if (inner % model.mamba_norm_groups != 0)
    refuse_model(
        fmt::format("model.mamba_heads = {} times model.mamba_head_dim = {} must be a multiple of "
                    "model.mamba_norm_groups = {}",
                    model.mamba_heads, model.mamba_head_dim, model.mamba_norm_groups));
  constexpr std::int64_t widest = 1 << 22;
  if (inner > widest || model.mamba_groups * model.mamba_state > widest)
    refuse_model(
        fmt::format("model.mamba_heads = {} times model.mamba_head_dim = {}, and model.mamba_groups = {} "
                    "times model.mamba_state = {}, must be at most {}",
                    model.mamba_heads, model.mamba_head_dim, model.mamba_groups, model.mamba_state, widest));
  if (model.mamba_step_maximum != 0 && model.mamba_step_maximum < model.mamba_step_minimum)
    refuse_model(
        fmt::format("model.mamba_step_maximum = {} must be 0 or at least model.mamba_step_minimum = {}",
                    model.mamba_step_maximum, model.mamba_step_minimum));
  if (model.family == "mamba2" && inner % model.hidden != 0)
    refuse_model(
        fmt::format("model.mamba_heads = {} times model.mamba_head_dim = {} must be a multiple of "
                    "model.hidden = {} in the family mamba2",
                    model.mamba_heads, model.mamba_head_dim, model.hidden));
}

void check_size(const ModelConfiguration& model) {
  constexpr double most_parameters = 1e13;
  if (const double parameters = estimated_parameter_count(model); parameters > most_parameters)
    refuse_model(fmt::format(
        "the model would have {:.3g} parameters, more than the {:.0e} that make sense: check "
        "model.layers = {}, model.hidden = {}, model.ffn = {}, model.experts = {} and model.vocab = {}",
        parameters, most_parameters, model.layers, model.hidden, model.ffn, model.experts, model.vocab));
}

/// What the model consists of: the meaning of all else depends on it.
void check_parts(const ModelConfiguration& model) {
  Configuration configuration;
  configuration.model = model;
  for (const std::string_view name : {"model.family", "model.layers", "model.experts", "model.pattern"}) {
    const Key& key = *find_key(name);
    check_value(key, key.read(configuration), {});
  }
  check_pattern(model, rules_of(model.family));
}

/// Every number in its own range, and none about what the model does not have.
void check_values(const ModelConfiguration& model) {
  Configuration configuration;
  configuration.model = model;
  for (const Key& key : key_table()) {
    if (!key.name.starts_with("model.")) continue;
    const Value value = key.read(configuration);
    if (has_meaning(key, model)) {
      check_value(key, value, {});
    } else if (value != neutral_value(key)) {
      refuse_model(fmt::format("{} = {} has no meaning for this model: it is about {}", key.name,
                               value_text(value), key.subject->name));
    }
  }
}

}  // namespace

void refuse_model(const std::string& sentence) { throw ConfigurationError(sentence); }

void check(const ModelConfiguration& model) {
  check_parts(model);
  check_values(model);
  const FamilyRules& rules = rules_of(model.family);
  check_one_of("model.normalization", model.normalization,
               {model.family == "gpt2" ? Normalization::layer_norm : Normalization::rms_norm}, model.family);
  check_one_of("model.position", model.position, rules.positions, model.family);
  if (has_block(model, Block::mlp) || has_block(model, Block::experts))
    check_one_of("model.activation", model.activation, rules.activations, model.family);
  if (has_attention(model)) check_attention(model);
  if (model.family == "gpt2") check_gpt2(model);
  if (has_block(model, Block::experts)) check_experts(model);
  if (has_block(model, Block::mamba)) check_mamba(model);
  check_size(model);
}

}  // namespace encore::model
