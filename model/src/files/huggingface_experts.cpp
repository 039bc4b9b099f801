// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "blocks.hpp"
#include "huggingface_families.hpp"

// Qwen3MoeConfig, MixtralConfig and GptOssConfig.

namespace encore::model {
namespace {

/// The number of experts, by the name in published files or by the one of transformers 5.
void read_experts(HuggingFaceFields& fields, std::string_view published, std::string_view other,
                  Settings& settings) {
  fields.use(other, "model.experts", settings);
  if (fields.take(published) != nullptr || !settings.contains("model.experts"))
    fields.require(published, "model.experts", settings);
  fields.require("num_experts_per_tok", "model.topk", settings);
}

std::int64_t layers_of(const Settings& settings) {
  return std::get<std::int64_t>(settings.at("model.layers").value);
}

std::string expert_letters(std::int64_t layers) {
  return std::string(static_cast<std::size_t>(layers), letter_of(Block::experts));
}

bool windowed_everywhere(const ModelConfiguration& model) {
  return letters_at(model, 0, 2) == attention_letters(model.layers, true);
}

}  // namespace

Settings read_qwen3_moe(HuggingFaceFields& fields) {
  Settings settings = read_decoder(fields, 1e-6);
  read_experts(fields, "num_experts", "num_local_experts", settings);
  fields.require("moe_intermediate_size", "model.expert_ffn", settings);
  fields.use("intermediate_size", "model.ffn", settings);
  fields.use_or("norm_topk_prob", "model.router_renormalize", false, settings);
  const std::int64_t layers = layers_of(settings);
  const std::int64_t step = fields.whole("decoder_sparse_step", 1);
  if (step < 1) fields.refuse("decoder_sparse_step", "a number from 1 on is expected");
  const std::vector<std::int64_t> dense = fields.wholes("mlp_only_layers");
  const bool sparse = settings.at("model.experts").value != Value(std::int64_t{0});
  std::string feed_forward(static_cast<std::size_t>(layers), letter_of(Block::mlp));
  for (std::int64_t i = 0; i < layers; ++i)
    if (sparse && (i + 1) % step == 0 && std::ranges::find(dense, i) == dense.end())
      feed_forward[static_cast<std::size_t>(i)] = letter_of(Block::experts);
  if (feed_forward.find(letter_of(Block::experts)) == std::string::npos)
    set(settings, "model.experts", std::int64_t{0});
  Settings window;
  fields.use_or("sliding_window", "model.sliding_window", std::int64_t{4096}, window);
  const bool windowed = fields.truth("use_sliding_window", false);
  fields.ignore("max_window_layers");  // every layer has the window
  set_pattern(settings, attention_letters(layers, windowed), feed_forward);
  settings.merge(window);
  return settings;
}

nlohmann::ordered_json qwen3_moe_fields(const ModelConfiguration& model) {
  nlohmann::ordered_json fields = decoder_fields(model);
  const bool sparse = has_block(model, Block::experts), windowed = windowed_everywhere(model);
  std::vector<std::int64_t> dense;
  const std::string feed_forward = letters_at(model, 1, 2);
  for (std::size_t i = 0; i < feed_forward.size(); ++i)
    if (sparse && feed_forward[i] == letter_of(Block::mlp)) dense.push_back(static_cast<std::int64_t>(i));
  // What does not matter gets a width of the model all the same.
  fields["intermediate_size"] = std::max(model.ffn, has_block(model, Block::mlp) ? 0 : model.expert_ffn);
  fields["moe_intermediate_size"] = sparse ? model.expert_ffn : model.ffn;
  fields["num_experts"] = model.experts;
  fields["num_experts_per_tok"] = std::max(model.topk, std::int64_t{1});
  fields["norm_topk_prob"] = model.router_renormalize;
  fields["decoder_sparse_step"] = 1;
  fields["mlp_only_layers"] = dense;
  fields["use_sliding_window"] = windowed;
  fields["sliding_window"] = windowed ? nlohmann::ordered_json(model.sliding_window) : nullptr;
  return fields;
}

Settings read_mixtral(HuggingFaceFields& fields) {
  Settings settings = read_decoder(fields, 1e-5, 1e6);
  read_experts(fields, "num_local_experts", "num_experts", settings);
  fields.require("intermediate_size", "model.expert_ffn", settings);
  fields.use("sliding_window", "model.sliding_window", settings);
  fields.expect("router_jitter_noise", 0);
  const std::int64_t layers = layers_of(settings);
  set_pattern(settings, attention_letters(layers, settings.contains("model.sliding_window")),
              expert_letters(layers));
  return settings;
}

nlohmann::ordered_json mixtral_fields(const ModelConfiguration& model) {
  nlohmann::ordered_json fields = decoder_fields(model);
  fields["intermediate_size"] = model.expert_ffn;
  fields["num_local_experts"] = model.experts;
  fields["num_experts_per_tok"] = model.topk;
  fields["sliding_window"] =
      windowed_everywhere(model) ? nlohmann::ordered_json(model.sliding_window) : nullptr;
  return fields;
}

Settings read_gpt_oss(HuggingFaceFields& fields) {
  const bool tells_frequencies =
      fields.take("rope_scaling") != nullptr || fields.take("rope_parameters") != nullptr;
  Settings settings = read_decoder(fields, 1e-5, 150000);
  if (!tells_frequencies) {
    set(settings, "model.rope_factor", 32.0);
    set(settings, "model.rope_original_seq", std::int64_t{4096});
    set(settings, "model.rope_truncate", false);
  }
  for (const auto& [key, value] : {std::pair<std::string_view, Value>("model.head_dim", std::int64_t{64}),
                                   {"model.qkv_bias", true},
                                   {"model.attention_output_bias", true}})
    if (!settings.contains(key)) set(settings, key, value);
  read_experts(fields, "num_local_experts", "num_experts", settings);
  fields.require("intermediate_size", "model.expert_ffn", settings);
  fields.use("swiglu_limit", "model.swiglu_limit", settings);
  fields.expect("swiglu_alpha", 1.702);
  fields.ignore("experts_per_token");  // in some files, beside num_experts_per_tok
  fields.use_or("sliding_window", "model.sliding_window", std::int64_t{128}, settings);
  const std::int64_t layers = layers_of(settings);
  const std::vector<std::string> types = fields.texts("layer_types");
  if (!types.empty() && std::ssize(types) != layers)
    fields.refuse("layer_types", fmt::format("one for each of num_hidden_layers = {} is expected", layers));
  std::string letters = attention_letters(layers, false);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const std::string type = !types.empty() ? types[i] : i % 2 == 0 ? "sliding_attention" : "full_attention";
    if (type != "full_attention" && type != "sliding_attention")
      fields.refuse("layer_types", "only full_attention, sliding_attention");
    if (type == "sliding_attention") letters[i] = letter_of(Block::windowed_attention);
  }
  set_pattern(settings, letters, expert_letters(layers));
  return settings;
}

nlohmann::ordered_json gpt_oss_fields(const ModelConfiguration& model) {
  nlohmann::ordered_json fields = decoder_fields(model);
  fields["intermediate_size"] = model.expert_ffn;
  fields["num_local_experts"] = model.experts;
  fields["num_experts_per_tok"] = model.topk;
  fields["swiglu_limit"] = model.swiglu_limit;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const char letter : letters_at(model, 0, 2))
    types.push_back(letter == letter_of(Block::attention) ? "full_attention" : "sliding_attention");
  fields["layer_types"] = std::move(types);
  fields["sliding_window"] = has_block(model, Block::windowed_attention)
                                 ? nlohmann::ordered_json(model.sliding_window)
                                 : nlohmann::ordered_json(128);
  return fields;
}

}  // namespace encore::model
