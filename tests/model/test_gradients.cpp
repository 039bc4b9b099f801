// SPDX-License-Identifier: Apache-2.0
#include "double_step.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace {

using namespace encore;
using namespace encore::tests;

/// Every parameter along two random directions; central differences are exact to about 1e-9 in float64.
void check_gradients(const model::Configuration& configuration) {
  DoubleStep step(configuration);
  step.backward();
  std::vector<double> gradients(step.gradients(), step.gradients() + step.layout().elements());
  std::mt19937 generator(17);
  std::normal_distribution<double> normal(0.0, 1.0);
  for (const auto& parameter : step.layout().parameters())
    for (int direction = 0; direction < 2; ++direction) {
      CAPTURE(parameter.name);
      const auto count = static_cast<std::size_t>(parameter.elements());
      std::vector<double> way(count);
      double analytic = 0;
      for (std::size_t i = 0; i < count; ++i) {
        way[i] = normal(generator) / std::sqrt(static_cast<double>(count));
        analytic += way[i] * gradients[static_cast<std::size_t>(parameter.offset) + i];
      }
      double* values = step.parameters() + parameter.offset;
      const std::vector<double> kept(values, values + count);
      constexpr double width = 1e-5;
      const auto loss_at = [&](double distance) {
        for (std::size_t i = 0; i < count; ++i) values[i] = kept[i] + distance * way[i];
        return step.loss();
      };
      const double numeric = (loss_at(width) - loss_at(-width)) / (2 * width);
      std::copy(kept.begin(), kept.end(), values);
      CHECK(analytic == doctest::Approx(numeric).epsilon(1e-5).scale(1e-3));
    }
}

void check_gradients(const std::vector<std::string>& settings) { check_gradients(resolve(settings)); }

std::vector<std::string> with(const std::string& family, const std::vector<std::string>& more) {
  auto settings = tiny_model(family);
  settings.push_back("model.seq=10");
  settings.push_back("backend=serial");
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

TEST_CASE("every gradient of GPT-2 equals finite differences in float64") {
  check_gradients(with("gpt2", {}));
}
TEST_CASE(
    "every gradient of GPT-2 with exact GELU, untied head, dropout and microbatches equals finite "
    "differences") {
  check_gradients(with("gpt2", {"model.activation=gelu", "model.tie_embeddings=false", "model.dropout=0.2",
                                "model.attention_dropout=0.2", "train.microbatches=2"}));
}
TEST_CASE("every gradient of Llama equals finite differences in float64") {
  check_gradients(with("llama", {}));
}
TEST_CASE(
    "every gradient of Llama with biases, tied head, free head size and interleaved positions equals finite "
    "differences") {
  check_gradients(with("llama", {"model.qkv_bias=true", "model.attention_output_bias=true",
                                 "model.mlp_bias=true", "model.tie_embeddings=true", "model.head_dim=6",
                                 "model.position=rope_interleaved", "train.microbatches=2"}));
}
TEST_CASE(
    "every gradient of attention with QK norm, sinks, windows, stretched positions, biases and dropout, and "
    "of a "
    "clamped MLP, equals finite differences") {
  model::Configuration configuration =
      resolve(with("llama", {"model.qkv_bias=true", "model.attention_output_bias=true", "model.mlp_bias=true",
                             "model.head_dim=6", "train.microbatches=2"}));
  // All at once in no family.
  model::ModelConfiguration& model = configuration.model;
  model.query_key_norm = model.attention_sinks = true;
  model.pattern = "~-*-";
  model.sliding_window = 3;
  model.rope_factor = 4;
  model.rope_original_seq = 5;
  model.attention_dropout = 0.2;
  model.activation = model::Activation::swiglu_clamped;
  model.swiglu_limit = 0.6;
  check_gradients(configuration);
}
TEST_CASE(
    "every gradient of attention with QK norm and no positions, and of a squared ReLU, equals finite "
    "differences") {
  model::Configuration configuration = resolve(with("llama", {}));
  configuration.model.query_key_norm = true;
  configuration.model.position = model::Position::none;
  configuration.model.activation = model::Activation::relu_squared;
  check_gradients(configuration);
}

void check_experts(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.push_back("model.seq=10");
  settings.push_back("backend=serial");
  settings.insert(settings.end(), more.begin(), more.end());
  check_gradients(settings);
}

void check_mamba(const std::vector<std::string>& more) {
  std::vector<std::string> settings{"model.family=mamba2", "model.layers=2",         "model.hidden=12",
                                    "model.mamba_heads=4", "model.mamba_head_dim=6", "model.mamba_state=5",
                                    "model.mamba_chunk=4", "model.vocab=61",         "model.seq=10",
                                    "train.microbatch=2",  "backend=serial",         "seed=5"};
  settings.insert(settings.end(), more.begin(), more.end());
  check_gradients(settings);
}

TEST_CASE("every gradient of Mamba-2 equals finite differences") { check_mamba({}); }
TEST_CASE(
    "every gradient of Mamba-2 with groups, biases, limited steps and microbatches equals finite "
    "differences") {
  check_mamba({"model.mamba_groups=2", "model.mamba_bias=true", "model.mamba_step_minimum=0.5",
               "model.mamba_step_maximum=0.9", "model.mamba_convolution=3", "train.microbatches=2"});
}
TEST_CASE(
    "every gradient of Mamba-2 without a convolution bias, normalized by groups, with dropout, equals finite "
    "differences") {
  model::Configuration configuration =
      resolve({"model.family=mamba2", "model.layers=2", "model.hidden=12", "model.mamba_heads=4",
               "model.mamba_head_dim=6", "model.mamba_state=5", "model.mamba_chunk=16", "model.vocab=61",
               "model.seq=10", "train.microbatch=2", "backend=serial", "seed=5",
               "model.mamba_convolution_bias=false", "model.tie_embeddings=false"});
  configuration.model.mamba_norm_groups = 3;
  configuration.model.dropout = 0.2;
  check_gradients(configuration);
}

TEST_CASE("every gradient of a mixture of experts with balance and z losses equals finite differences") {
  check_experts(tiny_experts(),
                {"train.balance_loss=0.3", "train.router_z_loss=0.2", "train.microbatches=2"});
}
TEST_CASE("every gradient of a mixture of experts without renormalization equals finite differences") {
  check_experts(tiny_experts(), {"model.router_renormalize=false", "train.balance_loss=0.1"});
}
TEST_CASE("every gradient of a mixture of experts that drops tokens equals finite differences") {
  check_experts(tiny_experts(), {"train.expert_capacity=0.6"});
}
TEST_CASE("every gradient of a mixture of experts with router jitter and dropout equals finite differences") {
  check_experts(tiny_experts(), {"train.router_jitter=0.1", "model.dropout=0.2"});
}
TEST_CASE("every gradient of a hybrid of Mamba, attention, MLP and experts equals finite differences") {
  check_experts(tiny_hybrid(), {"train.balance_loss=0.1", "train.microbatches=2"});
}

}  // namespace
