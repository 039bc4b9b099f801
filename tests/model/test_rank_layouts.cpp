// SPDX-License-Identifier: Apache-2.0
// Every way in which up to 8 ranks can share a model.
#include "rank_groups.hpp"
#include "tiny_models.hpp"
#include "whole_tensors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace encore;
using namespace encore::tests;

constexpr std::int64_t most_ranks = 8, steps = 50, sequences = 8;

/// Attention and experts by turns, all of whose parts can be dealt out to 8.
std::vector<std::string> settings_of(const model::ParallelConfiguration& parallel,
                                     const char* implementation) {
  const auto set = [](const char* key, std::int64_t value) { return key + ("=" + std::to_string(value)); };
  return {"model.family=qwen3_moe",
          "model.layers=8",
          "model.hidden=16",
          "model.heads=8",
          "model.kv_heads=8",
          "model.head_dim=4",
          "model.expert_ffn=8",
          "model.experts=8",
          "model.topk=2",
          "model.vocab=64",
          "model.seq=4",
          "train.seq=4",
          "train.lr=0.002",
          "train.min_lr=0.002",
          "train.balance_loss=0.01",
          "backend=serial",
          std::string("graph.impl=") + implementation,
          set("train.microbatches", sequences / parallel.data),
          set("parallel.data", parallel.data),
          set("parallel.tensor", parallel.tensor),
          set("parallel.expert", parallel.expert),
          set("parallel.pipeline", parallel.pipeline),
          std::string("parallel.expert_dispatch=") + std::string(name_of(parallel.expert_dispatch)),
          std::string("parallel.sequence=") + (parallel.sequence ? "true" : "false"),
          std::string("parallel.shard_optimizer=") + (parallel.shard_optimizer ? "true" : "false")};
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> weights;
  std::vector<TrainingState> states;  ///< by rank
  bool replayed = false;
};

Trained train(const model::ParallelConfiguration& parallel, const char* implementation) {
  const model::Configuration configuration = resolve(settings_of(parallel, implementation), {});
  auto whole = configuration;
  whole.train.microbatches = sequences;
  WholeTensors weights;
  Trained trained;
  trained.states.resize(static_cast<std::size_t>(model::RankLayout(parallel, true).ranks()));
  on_rank_layout(parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    const std::size_t count = random_batch(configuration, 0).ids.size();
    const std::size_t begin = groups.data ? static_cast<std::size_t>(groups.data->rank()) * count : 0;
    for (std::int64_t step = 0; step < steps; ++step) {
      const Batch batch = random_batch(whole, step);
      trainer->set_batch(std::span(batch.ids).subspan(begin, count),
                         std::span(batch.labels).subspan(begin, count));
      const model::StepResult result = trainer->step(configuration.train.lr);
      if (rank > 0) continue;
      trained.losses.push_back(result.loss);
      trained.replayed = result.report.mode == graph::StepMode::replay;
    }
    trained.states[static_cast<std::size_t>(rank)] = state_of(*trainer);
    weights.add(*trainer, model::ParameterArray::weights);
  });
  trained.weights = weights.tensors();
  return trained;
}

double largest_difference(const Trained& first, const Trained& second) {
  double largest = 0;
  for (const auto& [name, values] : first.weights) {
    const std::vector<float>& others = second.weights.at(name);
    REQUIRE(values.size() == others.size());
    double difference = 0, scale = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference = std::max(difference, std::abs(double(values[i]) - double(others[i])));
      scale = std::max(scale, std::abs(double(values[i])));
    }
    largest = std::max(largest, difference / scale);
  }
  return largest;
}

std::vector<model::ParallelConfiguration> layouts() {
  std::vector<model::ParallelConfiguration> all;
  for (std::int64_t tensor = 1; tensor <= most_ranks; tensor *= 2)
    for (std::int64_t data = 1; tensor * data <= most_ranks; data *= 2)
      for (std::int64_t pipeline = 1; tensor * data * pipeline <= most_ranks; pipeline *= 2)
        for (std::int64_t expert = 1; expert <= data; expert *= 2) {
          // Each second layout with what can be added to it.
          const bool more = all.size() % 2 == 1;
          all.push_back({.data = data,
                         .tensor = tensor,
                         .sequence = more && tensor > 1 && 4 % tensor == 0,
                         .expert = expert,
                         .expert_dispatch = all.size() % 3 == 0 ? model::ExpertDispatch::all_gather
                                                                : model::ExpertDispatch::all_to_all,
                         .shard_optimizer = more,
                         .pipeline = pipeline});
        }
  return all;
}

}  // namespace

TEST_CASE(
    "every layout of up to 8 ranks gives the losses and weights of one rank, and replays what it does "
    "eagerly") {
  const Trained alone = train({}, "none");
  for (const model::ParallelConfiguration& parallel : layouts()) {
    CAPTURE(parallel.tensor);
    CAPTURE(parallel.data);
    CAPTURE(parallel.expert);
    CAPTURE(parallel.pipeline);
    CAPTURE(parallel.sequence);
    const Trained eager = train(parallel, "none"), replayed = train(parallel, "full_iteration");
    CHECK(replayed.replayed);
    CHECK(replayed.losses == eager.losses);
    CHECK((replayed.states == eager.states));
    for (std::size_t step = 0; step < alone.losses.size(); ++step)
      CHECK(eager.losses[step] == doctest::Approx(alone.losses[step]).epsilon(2e-4));
    CHECK(largest_difference(alone, eager) < 5e-3);
  }
}
