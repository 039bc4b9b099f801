// SPDX-License-Identifier: Apache-2.0
#include "double_step.hpp"
#include "rank_groups.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

namespace {

using namespace encore;
using namespace encore::tests;

/// The largest difference, relative to the tensor's largest number.
double difference(const std::vector<double>& first, const std::vector<double>& second) {
  REQUIRE(first.size() == second.size());
  double largest = 0, scale = 1e-6;
  for (std::size_t i = 0; i < first.size(); ++i) {
    largest = std::max(largest, std::abs(first[i] - second[i]));
    scale = std::max(scale, std::abs(first[i]));
  }
  return largest / scale;
}

/// Loss and every gradient of tensor ranks are those of one rank, as exactly as float64 tells.
void check_ranks(const std::vector<std::string>& settings, std::int64_t ranks, bool sequence) {
  model::Configuration configuration = resolve(settings, {"backend=serial"});
  DoubleStep alone(configuration);
  alone.backward();
  DoubleStep::Tensors weights, expected;
  alone.store(alone.parameters(), weights);
  alone.store(alone.gradients(), expected);
  const double loss = alone.loss();

  configuration.parallel.tensor = ranks;
  configuration.parallel.sequence = sequence;
  DoubleStep::Tensors gradients;
  std::vector<DoubleStep::Tensors> of_rank(static_cast<std::size_t>(ranks));
  std::vector<double> losses(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    DoubleStep step(configuration, model::shard_of(configuration.parallel, true, rank), groups.tensor);
    step.load(weights);
    step.backward();
    {
      const std::lock_guard lock(mutex);
      step.store(step.gradients(), gradients);
      // A rank that has a part of a tensor leaves zeros elsewhere.
      step.store(step.gradients(), of_rank[static_cast<std::size_t>(rank)]);
    }
    losses[static_cast<std::size_t>(rank)] = step.loss();
  });
  for (const double of : losses) CHECK(of == doctest::Approx(loss).epsilon(1e-12));
  REQUIRE(gradients.size() == expected.size());
  for (const auto& [tensor, values] : expected) {
    CAPTURE(tensor);
    CHECK(difference(values, gradients.at(tensor)) < 1e-9);
    // What every rank has, every rank has all of.
    const bool shared =
        tensor.find("norm") != std::string::npos && tensor.find("mixer.norm") == std::string::npos;
    if (shared)
      for (const auto& tensors : of_rank) CHECK(difference(values, tensors.at(tensor)) < 1e-9);
  }
}

void check(const std::vector<std::string>& settings) {
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    check_ranks(settings, 2, sequence);
  }
}

std::vector<std::string> with(const std::string& family, const std::vector<std::string>& more) {
  auto settings = tiny_model(family);
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

}  // namespace

TEST_CASE("every gradient of GPT-2 on tensor ranks is that of one rank in float64") {
  check(with("gpt2", {"train.microbatches=2"}));
  check_ranks(with("gpt2", {"model.dropout=0.2"}), 2, false);
}

TEST_CASE("every gradient of Llama with all its biases on up to four tensor ranks is that of one rank") {
  const auto settings = with("llama", {"model.qkv_bias=true", "model.attention_output_bias=true",
                                       "model.mlp_bias=true", "model.kv_heads=4", "train.microbatches=2"});
  check(settings);
  check_ranks(settings, 4, false);
  check_ranks(settings, 4, true);
}

TEST_CASE("every gradient of QK norms, sinks, windows and a tied head on tensor ranks is that of one rank") {
  check(with("llama", {"model.query_key_norm=true", "model.attention_sinks=true", "model.pattern=~-*-",
                       "model.sliding_window=5", "model.tie_embeddings=true"}));
}

TEST_CASE("every gradient of Mamba-2 with groups and biases on tensor ranks is that of one rank") {
  check({"model.family=mamba2", "model.layers=2", "model.hidden=12", "model.mamba_heads=4",
         "model.mamba_head_dim=6", "model.mamba_state=5", "model.mamba_chunk=4", "model.mamba_groups=2",
         "model.mamba_norm_groups=2", "model.mamba_bias=true", "model.vocab=61", "model.seq=10",
         "train.microbatch=2", "train.microbatches=2", "seed=5"});
}
