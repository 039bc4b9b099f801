// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include "blocks.hpp"
#include "huggingface_families.hpp"

// GPT2Config, LlamaConfig and Qwen3Config.

namespace encore::model {

Settings read_gpt2(HuggingFaceFields& fields) {
  Settings settings;
  fields.require("vocab_size", "model.vocab", settings);
  fields.require("n_positions", "model.seq", settings);
  fields.require("n_embd", "model.hidden", settings);
  fields.require("n_layer", "model.layers", settings);
  fields.require("n_head", "model.heads", settings);
  fields.use("n_inner", "model.ffn", settings);
  fields.use("layer_norm_epsilon", "model.norm_epsilon", settings);
  fields.use("initializer_range", "model.initializer_range", settings);
  fields.use("tie_word_embeddings", "model.tie_embeddings", settings);
  fields.use_or("attn_pdrop", "model.attention_dropout", 0.1, settings);
  fields.use_or("resid_pdrop", "model.dropout", 0.1, settings);
  Settings embedding;
  fields.use_or("embd_pdrop", "model.dropout", 0.1, embedding);
  const Value& residual_dropout = settings.at("model.dropout").value;
  const Value& embedding_dropout = embedding.at("model.dropout").value;
  if (residual_dropout != embedding_dropout)
    throw ConfigurationError(
        fmt::format("resid_pdrop = {} and embd_pdrop = {} differ: this version has one dropout",
                    value_text(residual_dropout), value_text(embedding_dropout)));
  const std::string activation = fields.text("activation_function", "gelu_new");
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

nlohmann::ordered_json gpt2_fields(const ModelConfiguration& model) {
  return {{"vocab_size", model.vocab},
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

Settings read_llama(HuggingFaceFields& fields) {
  Settings settings = read_decoder(fields, 1e-6);
  fields.require("intermediate_size", "model.ffn", settings);
  fields.use("mlp_bias", "model.mlp_bias", settings);
  fields.expect("pretraining_tp", 1);
  return settings;
}

nlohmann::ordered_json llama_fields(const ModelConfiguration& model) {
  nlohmann::ordered_json fields = decoder_fields(model);
  fields["intermediate_size"] = model.ffn;
  fields["mlp_bias"] = model.mlp_bias;
  return fields;
}

Settings read_qwen3(HuggingFaceFields& fields) {
  Settings settings = read_decoder(fields, 1e-6);
  if (!settings.contains("model.head_dim")) set(settings, "model.head_dim", std::int64_t{128});
  fields.require("intermediate_size", "model.ffn", settings);
  Settings window;
  fields.use_or("sliding_window", "model.sliding_window", std::int64_t{4096}, window);
  const bool windowed = fields.truth("use_sliding_window", false);
  const std::int64_t full_layers = fields.whole("max_window_layers", 28);
  const std::vector<std::string> types = fields.texts("layer_types");
  const auto layers = std::get<std::int64_t>(settings.at("model.layers").value);
  if (!types.empty() && std::ssize(types) != layers)
    fields.refuse("layer_types", fmt::format("one for each of num_hidden_layers = {} is expected", layers));
  std::string letters = attention_letters(layers, false);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    if (!types.empty() && types[i] != "full_attention" && types[i] != "sliding_attention")
      fields.refuse("layer_types", "only full_attention, sliding_attention");
    const bool wants =
        types.empty() ? static_cast<std::int64_t>(i) >= full_layers : types[i] == "sliding_attention";
    if (windowed && wants) letters[i] = letter_of(Block::windowed_attention);
  }
  set_pattern(settings, letters, std::string(letters.size(), letter_of(Block::mlp)));
  settings.merge(window);
  return settings;
}

nlohmann::ordered_json qwen3_fields(const ModelConfiguration& model) {
  nlohmann::ordered_json fields = decoder_fields(model);
  fields["intermediate_size"] = model.ffn;
  const bool windowed = has_block(model, Block::windowed_attention);
  fields["use_sliding_window"] = windowed;
  fields["sliding_window"] = windowed ? nlohmann::ordered_json(model.sliding_window) : nullptr;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const char letter : letters_at(model, 0, 2))
    types.push_back(letter == letter_of(Block::attention) ? "full_attention" : "sliding_attention");
  fields["layer_types"] = std::move(types);
  return fields;
}

}  // namespace encore::model
