// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "parameter_list.hpp"

namespace encore::model {
namespace {

void add_head(ParameterList& list, const std::string& norm) {
  const ModelConfiguration& model = list.model;
  list.ones("head/norm.weight", model.hidden, norm + ".weight");
  if (model.tie_embeddings) return;
  list.add("head/logits.weight", {model.vocab, model.hidden}, Initialization::normal, model.initializer_range,
           "lm_head.weight");
  list.deal_out(0);
}

void add_block(ParameterList& list, Block block, const LayerNames& names, const std::string& norm) {
  switch (block) {
    case Block::mamba: add_mamba(list, names); break;
    case Block::attention:
    case Block::windowed_attention: add_attention(list, names); break;
    case Block::mlp: add_mlp(list, names, norm); break;
    case Block::experts: add_experts(list, names, norm); break;
  }
}

/// The names of the layers of this model that other files have: `backbone.` is `model.` in the memory of
/// transformers 5, and `embeddings` is `embedding` in some files.
void add_other_prefix(Parameter& parameter) {
  constexpr std::string_view published = "backbone.", other = "model.";
  const auto renamed = [&](std::vector<ParameterSlice> form) {
    for (ParameterSlice& slice : form)
      if (slice.name.starts_with(published)) slice.name.replace(0, published.size(), other);
    return form;
  };
  std::vector<std::vector<ParameterSlice>> forms = {renamed(parameter.slices)};
  for (const auto& form : parameter.other_forms) forms.push_back(renamed(form));
  if (forms.front().front().name != parameter.slices.front().name)
    parameter.other_forms.insert(parameter.other_forms.end(), forms.begin(), forms.end());
}

}  // namespace

void add_gpt2(ParameterList& list) {
  using enum Initialization;
  const ModelConfiguration& model = list.model;
  const double deviation = model.initializer_range;
  // Radford et al., 2019, section 2.3: projections into the residual stream start smaller.
  const double residual_deviation = deviation / std::sqrt(2.0 * static_cast<double>(model.layers));
  const std::int64_t hidden = model.hidden;
  list.add("embedding/tokens", {model.vocab, hidden}, normal, deviation, "transformer.wte.weight");
  list.deal_out(0);
  list.add("embedding/positions", {model.seq, hidden}, normal, deviation, "transformer.wpe.weight");
  for (std::int64_t index = 0; index < model.layers; ++index) {
    const std::string layer = "layer." + std::to_string(index);
    const std::string from = "transformer.h." + std::to_string(index) + ".";
    const auto norm = [&](const std::string& name, const std::string& slice) {
      list.ones(layer + name + ".weight", hidden, from + slice + ".weight");
      list.zeros(layer + name + ".bias", hidden, from + slice + ".bias");
    };
    const auto linear = [&](const std::string& name, std::int64_t inputs, std::int64_t outputs, double spread,
                            const std::string& slice, std::vector<std::int64_t> outputs_apart) {
      const bool shares_outputs = !outputs_apart.empty();
      list.add(layer + name + ".weight", {inputs, outputs}, normal, spread, from + slice + ".weight");
      list.deal_out(shares_outputs ? 1 : 0, outputs_apart);
      list.zeros(layer + name + ".bias", outputs, from + slice + ".bias");
      if (shares_outputs) list.deal_out(0, outputs_apart);
    };
    norm("/attn/norm", "ln_1");
    linear("/attn/qkv", hidden, 3 * hidden, deviation, "attn.c_attn", {hidden, hidden, hidden});
    linear("/attn/output", hidden, hidden, residual_deviation, "attn.c_proj", {});
    norm("/mlp/norm", "ln_2");
    linear("/mlp/up", hidden, model.ffn, deviation, "mlp.c_fc", {model.ffn});
    linear("/mlp/down", model.ffn, hidden, residual_deviation, "mlp.c_proj", {});
  }
  list.ones("head/norm.weight", hidden, "transformer.ln_f.weight");
  list.zeros("head/norm.bias", hidden, "transformer.ln_f.bias");
  if (model.tie_embeddings) return;
  list.add("head/logits.weight", {model.vocab, hidden}, normal, deviation, "lm_head.weight");
  list.deal_out(0);
}

void add_decoder_layers(ParameterList& list) {
  const ModelConfiguration& model = list.model;
  list.add("embedding/tokens", {model.vocab, model.hidden}, Initialization::normal, model.initializer_range,
           "model.embed_tokens.weight");
  list.deal_out(0);
  std::int64_t index = 0;
  for (const std::vector<Block>& blocks : blocks_of_layers(model)) {
    const std::string from = "model.layers." + std::to_string(index) + ".";
    const LayerNames names = {.layer = "layer." + std::to_string(index),
                              .layer_prefix = from,
                              .first_norm = from + "input_layernorm.",
                              .second_norm = from + "post_attention_layernorm.",
                              .attention = from + "self_attn.",
                              .feed_forward = from + "mlp.",
                              .mamba = {}};
    for (const Block block : blocks) add_block(list, block, names, names.second_norm);
    ++index;
  }
  add_head(list, "model.norm");
}

void add_single_blocks(ParameterList& list) {
  const ModelConfiguration& model = list.model;
  list.add("embedding/tokens", {model.vocab, model.hidden}, Initialization::normal, model.initializer_range,
           "backbone.embeddings.weight");
  list.deal_out(0);
  list.parameters.back().other_forms = {{{"backbone.embedding.weight", list.parameters.back().shape, 0}}};
  std::int64_t index = 0;
  for (const std::vector<Block>& blocks : blocks_of_layers(model)) {
    const std::string from = "backbone.layers." + std::to_string(index) + ".";
    const LayerNames names = {.layer = "layer." + std::to_string(index),
                              .layer_prefix = from,
                              .first_norm = from + "norm.",
                              .second_norm = {},
                              .attention = from + "mixer.",
                              .feed_forward = from + "mixer.",
                              .mamba = from + "mixer."};
    for (const Block block : blocks) add_block(list, block, names, names.first_norm);
    ++index;
  }
  add_head(list, "backbone.norm_f");
  if (model.family == "nemotron_h") std::ranges::for_each(list.parameters, add_other_prefix);
}

}  // namespace encore::model
