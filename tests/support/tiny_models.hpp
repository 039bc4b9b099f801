// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/trainer.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace encore::tests {

/// Two layers of width 32 over sequences of 16 tokens.
inline std::vector<std::string> tiny_model(const std::string& family) {
  std::vector<std::string> settings{"model.family=" + family, "model.layers=2",     "model.hidden=32",
                                    "model.heads=4",          "model.ffn=64",       "model.vocab=61",
                                    "model.seq=16",           "train.microbatch=2", "train.steps=100",
                                    "train.lr=0.01",          "train.min_lr=0.01",  "seed=5"};
  if (family == "llama") settings.push_back("model.kv_heads=2");
  return settings;
}

/// Five layers of one block each, with all kinds of blocks: Mamba, MLP, attention and experts with a shared one, whose
/// choice is balanced by biases.
inline std::vector<std::string> tiny_hybrid() {
  return {"model.family=nemotron_h",
          "model.layers=5",
          "model.pattern=M*M-E",
          "model.hidden=32",
          "model.heads=4",
          "model.kv_heads=2",
          "model.head_dim=8",
          "model.ffn=48",
          "model.experts=4",
          "model.topk=2",
          "model.expert_ffn=24",
          "model.shared_ffn=16",
          "model.router_score=sigmoid",
          "model.expert_bias=true",
          "model.mamba_heads=4",
          "model.mamba_head_dim=8",
          "model.mamba_state=8",
          "model.mamba_groups=2",
          "model.mamba_chunk=8",
          "model.vocab=61",
          "model.seq=16",
          "train.microbatch=2",
          "train.steps=100",
          "train.lr=0.01",
          "train.min_lr=0.01",
          "seed=5"};
}

/// Two layers of attention and experts, of which the first is dense.
inline std::vector<std::string> tiny_experts() {
  return {"model.family=qwen3_moe", "model.layers=2",      "model.pattern=*-*E",
          "model.hidden=32",        "model.heads=4",       "model.kv_heads=2",
          "model.head_dim=8",       "model.ffn=48",        "model.experts=4",
          "model.topk=2",           "model.expert_ffn=24", "model.vocab=61",
          "model.seq=16",           "train.microbatch=2",  "train.steps=100",
          "train.lr=0.01",          "train.min_lr=0.01",   "seed=5"};
}

inline model::Configuration resolve(std::vector<std::string> settings,
                                    const std::vector<std::string>& more = {}) {
  model::ConfigurationSources sources;
  settings.insert(settings.end(), more.begin(), more.end());
  for (const std::string& setting : settings) sources.assignment(setting);
  return sources.resolve().configuration;
}

struct Batch {
  std::vector<std::int32_t> ids, labels;
};

/// A batch that depends on nothing but the step; every seventh label is ignored.
inline Batch random_batch(const model::Configuration& configuration, std::int64_t step) {
  const auto& train = configuration.train;
  std::mt19937 generator(static_cast<unsigned>(1000 + step));
  Batch batch;
  for (std::int64_t i = 0; i < train.microbatches * train.microbatch * train.seq; ++i) {
    batch.ids.push_back(
        static_cast<std::int32_t>(generator() % static_cast<unsigned>(configuration.model.vocab)));
    batch.labels.push_back(i % 7 == 6 ? -100
                                      : (batch.ids.back() * 3 + 1) %
                                            static_cast<std::int32_t>(configuration.model.vocab));
  }
  return batch;
}

/// What a data rank has of the random batch that all of them have together: microbatches of its own.
inline void set_share_of_batch(model::Trainer& trainer, std::int64_t step) {
  model::Configuration whole = trainer.configuration();
  const std::int64_t data_ranks = whole.parallel.data;
  whole.train.microbatches *= data_ranks;
  const Batch batch = random_batch(whole, step);
  const std::size_t count = batch.ids.size() / static_cast<std::size_t>(data_ranks);
  const std::size_t begin = static_cast<std::size_t>(trainer.layout().shard().place.data) * count;
  trainer.set_batch(std::span(batch.ids).subspan(begin, count),
                    std::span(batch.labels).subspan(begin, count));
}

/// All numbers that a training step changes.
struct TrainingState {
  std::vector<std::byte> bytes;  ///< weights, moments, master weights, biases of experts, in that order
  std::vector<model::RandomPosition> random;
  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

inline TrainingState state_of(model::Trainer& trainer) {
  using enum model::ParameterArray;
  TrainingState state;
  for (const auto array : {weights, first_moment, second_moment, master, expert_bias}) {
    if (!trainer.type_of(array)) continue;
    const auto append = [&](const std::vector<std::byte>& bytes) {
      state.bytes.insert(state.bytes.end(), bytes.begin(), bytes.end());
    };
    if (array == expert_bias)
      for (const auto& slice : trainer.layout().expert_biases()) append(trainer.read(array, slice));
    else
      for (const auto& box : trainer.layout().boxes()) append(trainer.read(array, box));
  }
  state.random = trainer.random_positions();
  return state;
}

}  // namespace encore::tests
