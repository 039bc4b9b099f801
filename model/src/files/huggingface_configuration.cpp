// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/huggingface_configuration.hpp>

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <array>
#include <utility>

#include "huggingface_fields.hpp"
#include "strict_json.hpp"
#include "text.hpp"

// Fields and defaults: GPT2Config and LlamaConfig of transformers, versions 4 and 5.

namespace encore::model {
namespace {

void set(Settings& settings, std::string_view key, Value value) {
  settings.insert_or_assign(std::string(key), Setting{std::move(value), Strength::checkpoint, {}});
}

std::string text_of(HuggingFaceFields& fields, std::string_view field, std::string fallback) {
  const nlohmann::json* const value = fields.take(field);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fields.refuse(field, "a name is expected");
  return value->get<std::string>();
}

Settings read_gpt2(HuggingFaceFields& fields) {
  Settings settings;
  set(settings, "model.family", std::string("gpt2"));
  set(settings, "model.dropout", 0.1);
  set(settings, "model.attention_dropout", 0.1);
  fields.require("vocab_size", "model.vocab", settings);
  fields.require("n_positions", "model.seq", settings);
  fields.require("n_embd", "model.hidden", settings);
  fields.require("n_layer", "model.layers", settings);
  fields.require("n_head", "model.heads", settings);
  fields.use("n_inner", "model.ffn", settings);
  fields.use("layer_norm_epsilon", "model.norm_epsilon", settings);
  fields.use("initializer_range", "model.initializer_range", settings);
  fields.use("tie_word_embeddings", "model.tie_embeddings", settings);
  fields.use("attn_pdrop", "model.attention_dropout", settings);
  fields.use("resid_pdrop", "model.dropout", settings);
  Settings embedding;
  set(embedding, "model.dropout", 0.1);
  fields.use("embd_pdrop", "model.dropout", embedding);
  const Value& residual_dropout = settings.at("model.dropout").value;
  const Value& embedding_dropout = embedding.at("model.dropout").value;
  if (residual_dropout != embedding_dropout)
    throw ConfigurationError(
        fmt::format("resid_pdrop = {} and embd_pdrop = {} differ: this version has one dropout",
                    value_text(residual_dropout), value_text(embedding_dropout)));
  const std::string activation = text_of(fields, "activation_function", "gelu_new");
  if (activation == "gelu") {
    set(settings, "model.activation", std::string("gelu"));
  } else if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    set(settings, "model.activation", std::string("gelu_tanh"));
  } else {
    fields.refuse("activation_function", "only gelu, gelu_new, gelu_pytorch_tanh");
  }
  fields.expect("scale_attn_weights", true);
  return settings;
}

/// Rotary frequencies stand in rope_theta and rope_scaling (version 4) or in rope_parameters (version 5).
void read_rope(HuggingFaceFields& fields, const std::string& source, Settings& settings) {
  fields.use("rope_theta", "model.rope_theta", settings);
  for (const std::string_view group : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* const value = fields.take(group);
    if (value == nullptr) continue;
    if (!value->is_object()) fields.refuse(group, "an object is expected");
    HuggingFaceFields inner(*value, fmt::format("{} of {}", group, source));
    for (const std::string_view type : {"rope_type", "type"})
      if (text_of(inner, type, "default") != "default") inner.refuse(type, "only default");
    inner.expect("partial_rotary_factor", 1);
    Settings theta;
    inner.use("rope_theta", "model.rope_theta", theta);
    const auto outer = settings.find("model.rope_theta");
    if (!theta.empty() && outer != settings.end() && outer->second.value != theta.begin()->second.value)
      inner.refuse("rope_theta", "because another rope_theta stands beside it");
    settings.merge(theta);
    inner.refuse_rest();
  }
}

/// What Hugging Face has no field for, as the writer below puts it.
void read_own_object(HuggingFaceFields& fields, const std::string& source, Settings& settings) {
  const nlohmann::json* const value = fields.take("encore");
  if (value == nullptr) return;
  if (!value->is_object()) fields.refuse("encore", "an object is expected");
  HuggingFaceFields own(*value, fmt::format("encore of {}", source));
  own.use("dropout", "model.dropout", settings);
  own.use("position", "model.position", settings);
  own.use("qkv_bias", "model.qkv_bias", settings);
  own.use("attention_output_bias", "model.attention_output_bias", settings);
  own.refuse_rest();
}

Settings read_llama(HuggingFaceFields& fields, const std::string& source) {
  Settings settings;
  set(settings, "model.family", std::string("llama"));
  set(settings, "model.norm_epsilon", 1e-6);
  fields.require("vocab_size", "model.vocab", settings);
  fields.require("max_position_embeddings", "model.seq", settings);
  fields.require("hidden_size", "model.hidden", settings);
  fields.require("intermediate_size", "model.ffn", settings);
  fields.require("num_hidden_layers", "model.layers", settings);
  fields.require("num_attention_heads", "model.heads", settings);
  fields.use("num_key_value_heads", "model.kv_heads", settings);
  fields.use("head_dim", "model.head_dim", settings);
  fields.use("rms_norm_eps", "model.norm_epsilon", settings);
  fields.use("initializer_range", "model.initializer_range", settings);
  fields.use("tie_word_embeddings", "model.tie_embeddings", settings);
  fields.use("attention_dropout", "model.attention_dropout", settings);
  fields.use("attention_bias", "model.qkv_bias", settings);
  fields.use("attention_bias", "model.attention_output_bias", settings);
  fields.use("mlp_bias", "model.mlp_bias", settings);
  fields.expect("hidden_act", "silu");
  fields.expect("pretraining_tp", 1);
  read_rope(fields, source, settings);
  read_own_object(fields, source, settings);
  return settings;
}

/// Whether `transformers` computes the same as this model under the model_type llama.
bool is_plain_llama(const ModelConfiguration& model) {
  return model.position == Position::rope_half_split && model.qkv_bias == model.attention_output_bias;
}

nlohmann::ordered_json gpt2_fields(const ModelConfiguration& model) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", model.vocab},
          {"n_positions", model.seq},
          {"n_embd", model.hidden},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", model.ffn},
          {"activation_function", model.activation == Activation::gelu ? "gelu" : "gelu_new"},
          {"resid_pdrop", model.dropout},
          {"embd_pdrop", model.dropout},
          {"attn_pdrop", model.attention_dropout},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"initializer_range", model.initializer_range},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"tie_word_embeddings", model.tie_embeddings}};
}

nlohmann::ordered_json llama_fields(const ModelConfiguration& model) {
  nlohmann::ordered_json fields = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"vocab_size", model.vocab},
      {"max_position_embeddings", model.seq},
      {"hidden_size", model.hidden},
      {"intermediate_size", model.ffn},
      {"num_hidden_layers", model.layers},
      {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.kv_heads},
      {"head_dim", model.head_dim},
      {"hidden_act", "silu"},
      {"rms_norm_eps", model.norm_epsilon},
      {"rope_theta", model.rope_theta},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", model.rope_theta}}},
      {"attention_bias", model.qkv_bias},
      {"attention_dropout", model.attention_dropout},
      {"mlp_bias", model.mlp_bias},
      {"initializer_range", model.initializer_range},
      {"tie_word_embeddings", model.tie_embeddings}};
  nlohmann::ordered_json own = nlohmann::ordered_json::object();
  if (model.dropout != 0) own["dropout"] = model.dropout;
  if (!is_plain_llama(model)) {
    fields.erase("architectures");
    fields["model_type"] = "encore_llama";
    own["position"] = name_of(model.position);
    own["qkv_bias"] = model.qkv_bias;
    own["attention_output_bias"] = model.attention_output_bias;
  }
  if (!own.empty()) fields["encore"] = std::move(own);
  return fields;
}

}  // namespace

ModelConfiguration read_huggingface_configuration(std::string_view json, std::string_view source) {
  nlohmann::json document;
  try {
    document = parse_json_object(json);
  } catch (const JsonProblem& problem) {
    throw InputFileError(fmt::format("{} {}", source, problem.what()));
  }
  const std::string name(source);
  HuggingFaceFields fields(document, name);
  if (fields.take("model_type") == nullptr)
    throw ConfigurationError(fmt::format("{} has no model_type", source));
  const std::string type = text_of(fields, "model_type", {});
  Settings settings;
  if (type == "gpt2") {
    settings = read_gpt2(fields);
  } else if (type == "llama" || type == "encore_llama") {
    settings = read_llama(fields, name);
  } else {
    fields.refuse("model_type", "only gpt2, llama");
  }
  fields.refuse_rest();
  Configuration configuration;
  for (const Key& key : key_table())
    if (const auto found = settings.find(key.name); found != settings.end())
      key.assign(configuration, found->second.value);
  apply_defaults(configuration, settings);
  check(configuration.model);
  return configuration.model;
}

std::string write_huggingface_configuration(const ModelConfiguration& model, Precision stored_type) {
  check(model);
  nlohmann::ordered_json fields = model.family == "gpt2" ? gpt2_fields(model) : llama_fields(model);
  // The classes' own defaults are the ids of another vocabulary.
  fields["bos_token_id"] = nullptr;
  fields["eos_token_id"] = nullptr;
  fields["torch_dtype"] = stored_type == Precision::bf16 ? "bfloat16" : "float32";
  return fields.dump(2) + "\n";
}

}  // namespace encore::model
