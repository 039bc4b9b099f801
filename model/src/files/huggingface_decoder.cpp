// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "blocks.hpp"
#include "huggingface_families.hpp"

namespace encore::model {
namespace {

/// YaRN.
void read_extension(HuggingFaceFields& inner, Settings& settings) {
  inner.require("factor", "model.rope_factor", settings);
  inner.use_or("original_max_position_embeddings", "model.rope_original_seq", settings.at("model.seq").value,
               settings);
  inner.use("beta_fast", "model.rope_beta_fast", settings);
  inner.use("beta_slow", "model.rope_beta_slow", settings);
  inner.use("attention_factor", "model.rope_attention_factor", settings);
  inner.use("truncate", "model.rope_truncate", settings);
  if (settings.at("model.rope_factor").value == Value(1.0) && inner.take("attention_factor") != nullptr)
    inner.refuse("attention_factor", "because factor is 1");
}

/// Rotary frequencies stand in rope_theta and rope_scaling (version 4) or in rope_parameters (version 5).
void read_rope(HuggingFaceFields& fields, double otherwise, Settings& settings) {
  Settings outer;
  fields.use("rope_theta", "model.rope_theta", outer);
  for (const std::string_view group : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* const value = fields.take(group);
    if (value == nullptr) continue;
    if (!value->is_object()) fields.refuse(group, "an object is expected");
    HuggingFaceFields inner(*value, fmt::format("{} of {}", group, fields.source()));
    bool extended = false;
    for (const std::string_view name : {"rope_type", "type"}) {
      const std::string type = inner.text(name, "default");
      if (type != "default" && type != "yarn") inner.refuse(name, "only default, yarn");
      extended = extended || type == "yarn";
    }
    if (extended) read_extension(inner, settings);
    inner.expect("partial_rotary_factor", 1);
    Settings theta;
    inner.use("rope_theta", "model.rope_theta", theta);
    if (!theta.empty() && !outer.empty() && outer.begin()->second.value != theta.begin()->second.value)
      inner.refuse("rope_theta", "because another rope_theta stands beside it");
    outer.merge(theta);
    inner.refuse_rest();
  }
  set(settings, "model.rope_theta", otherwise);
  for (auto& [key, setting] : outer) settings.insert_or_assign(key, std::move(setting));
}

nlohmann::ordered_json rope_parameters(const ModelConfiguration& model) {
  if (model.rope_factor <= 1) return {{"rope_type", "default"}, {"rope_theta", model.rope_theta}};
  nlohmann::ordered_json parameters = {{"rope_type", "yarn"},
                                       {"rope_theta", model.rope_theta},
                                       {"factor", model.rope_factor},
                                       {"original_max_position_embeddings", model.rope_original_seq},
                                       {"beta_fast", model.rope_beta_fast},
                                       {"beta_slow", model.rope_beta_slow},
                                       {"truncate", model.rope_truncate}};
  if (model.rope_attention_factor != 0) parameters["attention_factor"] = model.rope_attention_factor;
  return parameters;
}

}  // namespace

Settings read_decoder(HuggingFaceFields& fields, double norm_epsilon, double rope_theta) {
  Settings settings;
  fields.require("vocab_size", "model.vocab", settings);
  fields.require("max_position_embeddings", "model.seq", settings);
  fields.require("hidden_size", "model.hidden", settings);
  fields.require("num_hidden_layers", "model.layers", settings);
  fields.require("num_attention_heads", "model.heads", settings);
  fields.use("num_key_value_heads", "model.kv_heads", settings);
  fields.use("head_dim", "model.head_dim", settings);
  fields.use_or("rms_norm_eps", "model.norm_epsilon", norm_epsilon, settings);
  fields.use("initializer_range", "model.initializer_range", settings);
  fields.use("tie_word_embeddings", "model.tie_embeddings", settings);
  fields.use("attention_dropout", "model.attention_dropout", settings);
  fields.use("attention_bias", "model.qkv_bias", settings);
  fields.use("attention_bias", "model.attention_output_bias", settings);
  fields.expect("hidden_act", "silu");
  read_rope(fields, rope_theta, settings);
  return settings;
}

nlohmann::ordered_json decoder_fields(const ModelConfiguration& model) {
  return {{"vocab_size", model.vocab},
          {"max_position_embeddings", model.seq},
          {"hidden_size", model.hidden},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"hidden_act", "silu"},
          {"rms_norm_eps", model.norm_epsilon},
          {"rope_theta", model.rope_theta},
          {"rope_parameters", rope_parameters(model)},
          {"attention_bias", model.qkv_bias},
          {"attention_dropout", model.attention_dropout},
          {"initializer_range", model.initializer_range},
          {"tie_word_embeddings", model.tie_embeddings}};
}

void set_pattern(Settings& settings, const std::string& first, const std::string& second) {
  std::string pattern;
  for (std::size_t i = 0; i < first.size(); ++i) {
    pattern += first[i];
    if (!second.empty()) pattern += second[i];
  }
  set(settings, "model.pattern", shortest_stretch(pattern));
}

std::string attention_letters(std::int64_t layers, bool windowed) {
  return std::string(static_cast<std::size_t>(layers),
                     letter_of(windowed ? Block::windowed_attention : Block::attention));
}

std::string letters_at(const ModelConfiguration& model, std::size_t place, std::size_t of_layer) {
  const std::string pattern = whole_pattern(model);
  std::string letters;
  for (std::size_t i = place; i < pattern.size(); i += of_layer) letters += pattern[i];
  return letters;
}

}  // namespace encore::model
