// SPDX-License-Identifier: Apache-2.0
#include "rank_groups.hpp"
#include "tiny_models.hpp"
#include "whole_tensors.hpp"

#include <encore/model/step_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace {

using namespace encore;
using namespace encore::tests;

struct Trained {
  std::vector<double> losses, gradient_norms;
  std::vector<std::map<std::string, std::vector<float>>> arrays;  ///< weights, moments, master weights
  std::vector<TrainingState> states;
  std::size_t optimizer_bytes = 0;
  std::string refusal;
};

Trained train(const std::vector<std::string>& settings, const std::vector<std::string>& more,
              std::int64_t steps) {
  const auto configuration = resolve(settings, more);
  std::vector<model::ParameterArray> arrays{model::ParameterArray::weights,
                                            model::ParameterArray::first_moment,
                                            model::ParameterArray::second_moment};
  if (configuration.train.master_weights) arrays.push_back(model::ParameterArray::master);
  std::vector<WholeTensors> tensors(arrays.size());
  Trained trained;
  const auto ranks = static_cast<std::size_t>(configuration.parallel.data);
  trained.states.resize(ranks);
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    for (std::int64_t step = 0; step < steps; ++step) {
      set_share_of_batch(*trainer, step);
      const model::StepResult result = trainer->step(configuration.train.lr);
      if (rank != 0) continue;
      trained.losses.push_back(result.loss);
      trained.gradient_norms.push_back(result.gradient_norm);
    }
    if (rank == 0) trained.refusal = trainer->refusal();
    trained.states[static_cast<std::size_t>(rank)] = state_of(*trainer);
    for (std::size_t i = 0; i < arrays.size(); ++i) tensors[i].add(*trainer, arrays[i]);
    if (rank == 0)
      for (const graph::Buffer& buffer : trainer->outline().buffers())
        if (buffer.kind == graph::BufferKind::optimizer_state && !buffer.part)
          trained.optimizer_bytes += buffer.bytes();
  });
  for (const WholeTensors& each : tensors) trained.arrays.push_back(each.tensors());
  return trained;
}

std::vector<std::string> on(std::int64_t ranks, const std::vector<std::string>& more) {
  std::vector<std::string> settings{"backend=serial", "train.microbatches=2",
                                    "parallel.data=" + std::to_string(ranks)};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<std::vector<std::string>> models() {
  auto mixed = tiny_model("llama");
  for (const char* setting :
       {"train.precision=bf16", "train.master_weights=true", "train.optimizer_state=bf16"})
    mixed.emplace_back(setting);
  auto dropped = tiny_model("gpt2");
  dropped.emplace_back("model.dropout=0.1");
  return {tiny_model("llama"), mixed, dropped, tiny_experts()};
}

}  // namespace

TEST_CASE("a sharded optimizer gives the weights and moments of a whole one, bit for bit") {
  for (const auto& settings : models())
    for (const std::int64_t ranks : {2, 3}) {
      CAPTURE(settings.front());
      CAPTURE(ranks);
      const Trained whole = train(settings, on(ranks, {"train.clip=0"}), 20);
      const Trained sharded =
          train(settings, on(ranks, {"train.clip=0", "parallel.shard_optimizer=true"}), 20);
      CHECK(sharded.refusal == "");
      CHECK(sharded.losses == whole.losses);
      CHECK(sharded.arrays == whole.arrays);
      REQUIRE(sharded.gradient_norms.size() == whole.gradient_norms.size());
      for (std::size_t i = 0; i < whole.gradient_norms.size(); ++i)
        CHECK(sharded.gradient_norms[i] == doctest::Approx(whole.gradient_norms[i]).epsilon(1e-5));
    }
}

TEST_CASE("50 clipped steps with a sharded optimizer stay close to those of a whole one") {
  for (const auto& settings : models()) {
    CAPTURE(settings.front());
    const std::vector<std::string> gentle{"train.clip=0.5", "train.lr=0.002", "train.min_lr=0.002"};
    auto sharding = gentle;
    sharding.emplace_back("parallel.shard_optimizer=true");
    const Trained whole = train(settings, on(4, gentle), 50), sharded = train(settings, on(4, sharding), 50);
    const bool rounds = whole.arrays.size() == 4;
    for (std::size_t i = 0; i < whole.losses.size(); ++i)
      CHECK(sharded.losses[i] == doctest::Approx(whole.losses[i]).epsilon(rounds ? 2e-2 : 1e-4));
  }
}

TEST_CASE("a sharded optimizer replays what it does eagerly, bit for bit, under every policy") {
  for (const auto& settings : models()) {
    CAPTURE(settings.front());
    const Trained eager = train(settings, on(2, {"parallel.shard_optimizer=true", "graph.impl=none"}), 20);
    for (const auto& policy :
         std::vector<std::vector<std::string>>{{"graph.impl=full_iteration"},
                                               {"graph.impl=full_iteration", "graph.optimizer=separate"},
                                               {"graph.impl=layer", "graph.optimizer=eager"},
                                               {"graph.impl=layer", "graph.modules=attn"}}) {
      CAPTURE(policy.back());
      auto more = policy;
      more.emplace_back("parallel.shard_optimizer=true");
      const Trained replayed = train(settings, on(2, more), 20);
      CHECK(replayed.refusal == "");
      CHECK(replayed.losses == eager.losses);
      CHECK((replayed.states == eager.states));
    }
  }
}

TEST_CASE("each of n ranks keeps an n-th of the optimizer's state") {
  auto settings = tiny_model("llama");
  const Trained whole = train(settings, on(4, {}), 1);
  const Trained sharded = train(settings, on(4, {"parallel.shard_optimizer=true"}), 1);
  CHECK(sharded.optimizer_bytes * 4 == whole.optimizer_bytes);
}

TEST_CASE("every stretch of weights is gathered exactly once a step, behind its update") {
  const auto configuration =
      resolve(tiny_model("llama"), on(4, {"parallel.shard_optimizer=true", "train.clip=0"}));
  const model::StepPlan plan = model::plan_step(configuration);
  int updates = 0, gathered = 0;
  for (const graph::Segment& segment : plan.outline.segments()) {
    if (segment.name.starts_with("optimizer/adamw.")) ++updates;
    if (segment.name.starts_with("data/gather_weights.")) {
      ++gathered;
      CHECK(gathered == updates);
    }
  }
  CHECK(updates > 0);
  CHECK(gathered == updates);
}
