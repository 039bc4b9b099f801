// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "configuration_settings.hpp"

namespace encore::model {
namespace {

/// Sets members for which no setting was given.
class Defaults {
 public:
  explicit Defaults(const Settings& settings) : settings_(settings) {}

  bool given(std::string_view key) const { return settings_.contains(key); }

  template <class Member, class Type>
  void fill(std::string_view key, Member& member, Type value) const {
    if (!given(key)) member = std::move(value);
  }

 private:
  const Settings& settings_;
};

void require_given(const Defaults& defaults, const ModelConfiguration& model) {
  std::vector<std::string_view> required = {"model.family", "model.layers", "model.hidden",
                                            "model.heads",  "model.vocab",  "model.seq"};
  const bool blocks_known = defaults.given("model.family") && defaults.given("model.layers");
  if (blocks_known && !has_attention(model)) std::erase(required, "model.heads");
  if (blocks_known && has_block(model, Block::windowed_attention)) required.push_back("model.sliding_window");
  std::erase_if(required, [&defaults](std::string_view key) { return defaults.given(key); });
  if (required.empty()) return;
  throw ConfigurationError(fmt::format(
      "{} {} missing: choose a preset, or give {} in a configuration file or as --set key=value",
      fmt::join(required, ", "), required.size() == 1 ? "is" : "are", required.size() == 1 ? "it" : "them"));
}

void fill_family(const Defaults& defaults, ModelConfiguration& model) {
  const auto is = [&model](auto... names) { return ((model.family == names) || ...); };
  const bool every_bias = is("gpt2", "gpt_oss");
  defaults.fill("model.normalization", model.normalization,
                is("gpt2") ? Normalization::layer_norm : Normalization::rms_norm);
  defaults.fill("model.position", model.position,
                is("gpt2")                   ? Position::learned
                : is("mamba2", "nemotron_h") ? Position::none
                                             : Position::rope_half_split);
  defaults.fill("model.tie_embeddings", model.tie_embeddings, is("gpt2"));
  if (has_block(model, Block::mlp) || has_block(model, Block::experts)) {
    defaults.fill("model.activation", model.activation,
                  is("gpt2")         ? Activation::gelu_tanh
                  : is("gpt_oss")    ? Activation::swiglu_clamped
                  : is("nemotron_h") ? Activation::relu_squared
                                     : Activation::swiglu);
    defaults.fill("model.mlp_bias", model.mlp_bias, every_bias);
  }
  if (has_attention(model)) {
    defaults.fill("model.qkv_bias", model.qkv_bias, every_bias);
    defaults.fill("model.attention_output_bias", model.attention_output_bias, every_bias);
    defaults.fill("model.query_key_norm", model.query_key_norm, is("qwen3", "qwen3_moe"));
    defaults.fill("model.attention_sinks", model.attention_sinks, is("gpt_oss"));
  }
  if (has_block(model, Block::experts)) {
    defaults.fill("model.router_score", model.router_score,
                  is("gpt_oss")      ? RouterScore::softmax_of_largest
                  : is("nemotron_h") ? RouterScore::sigmoid
                                     : RouterScore::softmax);
    defaults.fill("model.router_bias", model.router_bias, is("gpt_oss"));
    defaults.fill("model.expert_bias", model.expert_bias, is("nemotron_h"));
  }
}

void fill_attention(const Defaults& defaults, ModelConfiguration& model) {
  defaults.fill("model.kv_heads", model.kv_heads, model.heads);
  if (!defaults.given("model.head_dim")) {
    if (model.hidden % model.heads != 0)
      throw ConfigurationError(fmt::format(
          "model.hidden = {} must be a multiple of model.heads = {}, unless model.head_dim is given",
          model.hidden, model.heads));
    model.head_dim = model.hidden / model.heads;
  }
  if (model.rope_factor > 1)
    defaults.fill("model.rope_original_seq", model.rope_original_seq,
                  std::max(static_cast<std::int64_t>(static_cast<double>(model.seq) / model.rope_factor),
                           std::int64_t{1}));
}

std::int64_t inner_width(const Defaults& defaults, const ModelConfiguration& model) {
  if (defaults.given("model.ffn")) return model.ffn;
  if (!is_gated(model.activation)) return 4 * model.hidden;
  constexpr std::int64_t multiple = 64;
  const std::int64_t two_thirds = (8 * model.hidden + 2) / 3;
  return (two_thirds + multiple - 1) / multiple * multiple;
}

void fill_mamba(const Defaults& defaults, ModelConfiguration& model) {
  defaults.fill("model.mamba_head_dim", model.mamba_head_dim, 64);
  defaults.fill("model.mamba_state", model.mamba_state, 128);
  if (!defaults.given("model.mamba_heads")) {
    if (2 * model.hidden % model.mamba_head_dim != 0)
      throw ConfigurationError(
          fmt::format("2 * model.hidden = {} must be a multiple of model.mamba_head_dim = "
                      "{}, unless model.mamba_heads is given",
                      2 * model.hidden, model.mamba_head_dim));
    model.mamba_heads = 2 * model.hidden / model.mamba_head_dim;
  }
  defaults.fill("model.mamba_norm_groups", model.mamba_norm_groups, model.mamba_groups);
}

void fill_shape(const Defaults& defaults, ModelConfiguration& model) {
  if (has_attention(model)) fill_attention(defaults, model);
  if (has_block(model, Block::mlp)) model.ffn = inner_width(defaults, model);
  if (has_block(model, Block::experts)) {
    defaults.fill("model.topk", model.topk, std::min(std::int64_t{2}, model.experts));
    defaults.fill("model.expert_ffn", model.expert_ffn, inner_width(defaults, model));
  }
  if (has_block(model, Block::mamba)) fill_mamba(defaults, model);
}

void fill_graph(const Defaults& defaults, GraphConfiguration& graph) {
  OptimizerPlacement optimizer = OptimizerPlacement::joined;
  if (graph.impl == GraphImplementation::layer) optimizer = OptimizerPlacement::separate;
  if (graph.impl == GraphImplementation::none) optimizer = OptimizerPlacement::eager;
  defaults.fill("graph.optimizer", graph.optimizer, optimizer);
}

}  // namespace

void apply_defaults(Configuration& configuration, const Settings& settings) {
  const Defaults defaults(settings);
  ModelConfiguration& model = configuration.model;
  require_given(defaults, model);
  model.pattern = shortest_stretch(whole_pattern(model));
  fill_family(defaults, model);
  fill_shape(defaults, model);
  TrainConfiguration& train = configuration.train;
  defaults.fill("train.seq", train.seq, model.seq);
  defaults.fill("train.min_lr", train.min_lr, train.lr);
  defaults.fill("train.gradient_type", train.gradient_type, train.precision);
  defaults.fill("train.master_weights", train.master_weights, train.precision == Precision::bf16);
  fill_graph(defaults, configuration.graph);
}

}  // namespace encore::model
