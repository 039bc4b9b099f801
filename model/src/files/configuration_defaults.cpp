// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>
#include <vector>

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

void require_given(const Defaults& defaults) {
  constexpr std::array required = {"model.family", "model.layers", "model.hidden",
                                   "model.heads",  "model.vocab",  "model.seq"};
  std::vector<std::string_view> missing;
  for (const std::string_view key : required)
    if (!defaults.given(key)) missing.push_back(key);
  if (missing.empty()) return;
  throw ConfigurationError(fmt::format(
      "{} {} missing: choose a preset, or give {} in a configuration file or as --set key=value",
      fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are", missing.size() == 1 ? "it" : "them"));
}

void fill_family(const Defaults& defaults, ModelConfiguration& model) {
  const bool gpt2 = model.family == "gpt2";
  defaults.fill("model.normalization", model.normalization,
                gpt2 ? Normalization::layer_norm : Normalization::rms_norm);
  defaults.fill("model.activation", model.activation, gpt2 ? Activation::gelu_tanh : Activation::swiglu);
  defaults.fill("model.position", model.position, gpt2 ? Position::learned : Position::rope_half_split);
  defaults.fill("model.qkv_bias", model.qkv_bias, gpt2);
  defaults.fill("model.attention_output_bias", model.attention_output_bias, gpt2);
  defaults.fill("model.mlp_bias", model.mlp_bias, gpt2);
  defaults.fill("model.tie_embeddings", model.tie_embeddings, gpt2);
}

void fill_shape(const Defaults& defaults, ModelConfiguration& model) {
  constexpr std::int64_t multiple = 64;
  const std::int64_t two_thirds = (8 * model.hidden + 2) / 3;
  const std::int64_t gated = (two_thirds + multiple - 1) / multiple * multiple;
  defaults.fill("model.kv_heads", model.kv_heads, model.heads);
  defaults.fill("model.ffn", model.ffn, model.family == "gpt2" ? 4 * model.hidden : gated);
  if (!defaults.given("model.head_dim")) {
    if (model.hidden % model.heads != 0)
      throw ConfigurationError(fmt::format(
          "model.hidden = {} must be a multiple of model.heads = {}, unless model.head_dim is given",
          model.hidden, model.heads));
    model.head_dim = model.hidden / model.heads;
  }
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
  require_given(defaults);
  fill_family(defaults, configuration.model);
  fill_shape(defaults, configuration.model);
  TrainConfiguration& train = configuration.train;
  defaults.fill("train.seq", train.seq, configuration.model.seq);
  defaults.fill("train.min_lr", train.min_lr, train.lr);
  defaults.fill("train.gradient_type", train.gradient_type, train.precision);
  defaults.fill("train.master_weights", train.master_weights, train.precision == Precision::bf16);
  fill_graph(defaults, configuration.graph);
}

}  // namespace encore::model
