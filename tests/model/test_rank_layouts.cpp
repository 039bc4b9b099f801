// SPDX-License-Identifier: Apache-2.0
// Every way in which up to 8 ranks can share a model.
#include "rank_groups.hpp"
#include "tiny_models.hpp"
#include "whole_tensors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace encore;
using namespace encore::tests;

constexpr std::int64_t most_ranks = 8, steps = 50;

/// What a number of ranks must divide, and the same for layouts that divide them.
struct Sizes {
  std::int64_t heads, layers, experts, sequences, tokens;

  friend auto operator<=>(const Sizes&, const Sizes&) = default;
};

Sizes sizes_for(const model::ParallelConfiguration& parallel) {
  // 8, or what 3, 5, 6 or 7 divide.
  const auto dealt_out_to = [](std::int64_t ranks) {
    return most_ranks % ranks == 0 ? most_ranks : most_ranks / ranks * ranks;
  };
  const std::int64_t tokens = 4;
  return {dealt_out_to(parallel.tensor), dealt_out_to(parallel.pipeline), dealt_out_to(parallel.expert),
          dealt_out_to(parallel.data),
          parallel.sequence && tokens % parallel.tensor != 0 ? parallel.tensor : tokens};
}

/// Attention and experts by turns.
std::vector<std::string> settings_of(const Sizes& sizes, const model::ParallelConfiguration& parallel,
                                     const char* implementation) {
  const auto set = [](const char* key, std::int64_t value) { return key + ("=" + std::to_string(value)); };
  return {"model.family=qwen3_moe", set("model.layers", sizes.layers), "model.hidden=16",
          set("model.heads", sizes.heads), set("model.kv_heads", sizes.heads), "model.head_dim=4",
          set("model.expert_ffn", sizes.heads), set("model.experts", sizes.experts), "model.topk=2",
          set("model.vocab", 8 * sizes.heads), set("model.seq", sizes.tokens), set("train.seq", sizes.tokens),
          // So small a rate that no choice of experts comes to depend on the order of a sum.
          "train.lr=0.0003", "train.min_lr=0.0003", "train.balance_loss=0.01", "backend=serial",
          std::string("graph.impl=") + implementation,
          set("train.microbatches", sizes.sequences / parallel.data),
          set("parallel.virtual_stages", parallel.virtual_stages), set("parallel.data", parallel.data),
          set("parallel.tensor", parallel.tensor), set("parallel.expert", parallel.expert),
          set("parallel.pipeline", parallel.pipeline),
          std::string("parallel.expert_dispatch=") + std::string(name_of(parallel.expert_dispatch)),
          std::string("parallel.sequence=") + (parallel.sequence ? "true" : "false"),
          std::string("parallel.shard_optimizer=") + (parallel.shard_optimizer ? "true" : "false")};
}

struct Trained {
  std::vector<double> losses, gradient_norms;
  std::map<std::string, std::vector<float>> weights;
  std::vector<TrainingState> states;  ///< by rank
  bool replayed = false;
};

Trained train(const Sizes& sizes, const model::ParallelConfiguration& parallel, const char* implementation) {
  const model::Configuration configuration = resolve(settings_of(sizes, parallel, implementation), {});
  WholeTensors weights;
  Trained trained;
  trained.states.resize(static_cast<std::size_t>(model::RankLayout(parallel, true).ranks()));
  on_rank_layout(parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    for (std::int64_t step = 0; step < steps; ++step) {
      set_share_of_batch(*trainer, step);
      const model::StepResult result = trainer->step(configuration.train.lr);
      if (rank > 0) continue;
      trained.losses.push_back(result.loss);
      trained.gradient_norms.push_back(result.gradient_norm);
      trained.replayed = result.report.mode == graph::StepMode::replay;
    }
    trained.states[static_cast<std::size_t>(rank)] = state_of(*trainer);
    weights.add(*trainer, model::ParameterArray::weights);
  });
  trained.weights = weights.tensors();
  return trained;
}

/// Relative to the largest number of each tensor.
void check_close(const Trained& first, const Trained& second) {
  for (const auto& [name, values] : first.weights) {
    CAPTURE(name);
    const std::vector<float>& others = second.weights.at(name);
    REQUIRE(values.size() == others.size());
    double difference = 0, scale = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference = std::max(difference, std::abs(double(values[i]) - double(others[i])));
      scale = std::max(scale, std::abs(double(values[i])));
    }
    CHECK(difference < 5e-3 * scale);
  }
}

std::vector<model::ParallelConfiguration> layouts() {
  std::vector<model::ParallelConfiguration> all;
  for (std::int64_t tensor = 1; tensor <= most_ranks; ++tensor)
    for (std::int64_t data = 1; tensor * data <= most_ranks; ++data)
      for (std::int64_t pipeline = 1; tensor * data * pipeline <= most_ranks; ++pipeline)
        for (std::int64_t expert = 1; expert <= data; ++expert) {
          if (data % expert != 0) continue;
          // Each second layout with what can be added to it.
          const bool more = all.size() % 2 == 1;
          all.push_back({.data = data,
                         .tensor = tensor,
                         .sequence = more && tensor > 1,
                         .expert = expert,
                         .expert_dispatch = all.size() % 3 == 0 ? model::ExpertDispatch::all_gather
                                                                : model::ExpertDispatch::all_to_all,
                         .shard_optimizer = more,
                         .pipeline = pipeline,
                         .virtual_stages = more && (pipeline == 2 || pipeline == 4) ? 2 : 1});
        }
  return all;
}

bool is_power_of_two(std::int64_t number) { return std::has_single_bit(static_cast<std::uint64_t>(number)); }

/// Of the layouts whose numbers of ranks are powers of two, or of all others.
void check_layouts(bool powers_of_two) {
  std::map<Sizes, Trained> alone;
  for (const model::ParallelConfiguration& parallel : layouts()) {
    const bool all_powers = is_power_of_two(parallel.tensor) && is_power_of_two(parallel.data) &&
                            is_power_of_two(parallel.pipeline);
    if (all_powers != powers_of_two) continue;
    CAPTURE(parallel.tensor);
    CAPTURE(parallel.data);
    CAPTURE(parallel.expert);
    CAPTURE(parallel.pipeline);
    CAPTURE(parallel.virtual_stages);
    CAPTURE(parallel.sequence);
    const Sizes sizes = sizes_for(parallel);
    if (!alone.contains(sizes)) alone.emplace(sizes, train(sizes, {}, "none"));
    const Trained& one = alone.at(sizes);
    const Trained eager = train(sizes, parallel, "none"), replayed = train(sizes, parallel, "full_iteration");
    CHECK(replayed.replayed);
    CHECK(replayed.losses == eager.losses);
    CHECK((replayed.states == eager.states));
    for (std::size_t step = 0; step < one.losses.size(); ++step) {
      CHECK(eager.losses[step] == doctest::Approx(one.losses[step]).epsilon(2e-4));
      CHECK(eager.gradient_norms[step] == doctest::Approx(one.gradient_norms[step]).epsilon(5e-3));
    }
    check_close(one, eager);
  }
}

}  // namespace

// Both: 50 steps give the losses, gradient norms and weights of one rank, and are replayed as they run eagerly.

TEST_CASE(
    "every layout of 1, 2, 4 or 8 ranks in each direction trains like one rank, and replays bit for bit") {
  check_layouts(true);
}

TEST_CASE(
    "every layout with 3, 5, 6 or 7 ranks in a direction trains like one rank, and replays bit for bit") {
  check_layouts(false);
}
