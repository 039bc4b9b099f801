// SPDX-License-Identifier: Apache-2.0
#include "rank_groups.hpp"
#include "tiny_models.hpp"
#include "whole_tensors.hpp"

#include <encore/backend/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace {

using namespace encore;
using namespace encore::tests;

using Settings = std::vector<std::string>;

Settings and_more(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// What the ranks' training came to together.
struct Trained {
  std::vector<double> losses, gradient_norms, rows_needed;
  std::vector<std::vector<double>> losses_of_ranks;
  std::vector<std::int64_t> steps_over_budget;  ///< of each rank
  std::map<std::string, std::vector<float>> weights;
  std::vector<TrainingState> states;
  std::vector<std::int32_t> tokens_of_experts;
  std::vector<std::string> refusals;
  std::vector<double> evaluations;  ///< of each rank
  graph::StepMode mode = graph::StepMode::eager;
};

/// All numbers that a step changes, of the parts that a rank has.
TrainingState state_of_parts(model::Trainer& trainer) {
  using enum model::ParameterArray;
  TrainingState state;
  const auto add = [&](const std::vector<std::byte>& bytes) {
    state.bytes.insert(state.bytes.end(), bytes.begin(), bytes.end());
  };
  for (const auto array : {weights, first_moment, second_moment})
    for (const model::ParameterBox& box : trainer.layout().boxes()) add(trainer.read(array, box));
  for (const auto& slice : trainer.layout().expert_biases()) add(trainer.read(expert_bias, slice));
  state.random = trainer.random_positions();
  return state;
}

/// Each data rank has its own `microbatches` of batches that all of them make up together.
Trained train(const Settings& settings, std::int64_t microbatches, std::int64_t steps) {
  const auto configuration =
      resolve(settings, {"train.microbatches=" + std::to_string(microbatches), "backend=serial"});
  const model::RankLayout layout(configuration.parallel, true);
  const auto ranks = static_cast<std::size_t>(layout.ranks());
  Trained trained;
  trained.losses_of_ranks.resize(ranks);
  trained.states.resize(ranks);
  trained.refusals.resize(ranks);
  trained.steps_over_budget.resize(ranks);
  trained.evaluations.resize(ranks);
  WholeTensors weights;
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto index = static_cast<std::size_t>(rank);
    const auto trainer = model::make_trainer(configuration, groups);
    for (std::int64_t step = 0; step < steps; ++step) {
      set_share_of_batch(*trainer, step);
      const model::StepResult result = trainer->step(configuration.train.lr);
      trained.losses_of_ranks[index].push_back(result.loss);
      trained.steps_over_budget[index] += result.over_budget ? 1 : 0;
      if (rank != 0) continue;
      trained.gradient_norms.push_back(result.gradient_norm);
      trained.rows_needed.push_back(result.expert_rows_needed);
      trained.mode = result.report.mode;
    }
    trained.refusals[index] = trainer->refusal();
    trained.states[index] = state_of_parts(*trainer);
    if (rank == 0) trained.tokens_of_experts = trainer->tokens_of_experts();
    weights.add(*trainer, model::ParameterArray::weights);
    const Batch batch = random_batch(configuration, 1000);
    const auto tokens = static_cast<std::size_t>(configuration.train.microbatch * configuration.train.seq);
    trained.evaluations[index] =
        trainer->evaluate(std::span(batch.ids).first(tokens), std::span(batch.labels).first(tokens));
  });
  trained.losses = trained.losses_of_ranks.front();
  trained.weights = weights.tensors();
  return trained;
}

double largest_difference(const Trained& first, const Trained& second) {
  double difference = 0, scale = 0;
  REQUIRE(first.weights.size() == second.weights.size());
  for (const auto& [name, values] : first.weights) {
    const auto& others = second.weights.at(name);
    REQUIRE(others.size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference = std::max(difference, std::abs(double(values[i]) - double(others[i])));
      scale = std::max(scale, std::abs(double(values[i])));
    }
  }
  return difference / scale;
}

void check_close(const Trained& trained, const Trained& alone) {
  for (const std::string& refusal : trained.refusals) CHECK(refusal == "");
  for (const auto& losses : trained.losses_of_ranks) {
    REQUIRE(losses.size() == alone.losses.size());
    for (std::size_t step = 0; step < losses.size(); ++step)
      CHECK(losses[step] == doctest::Approx(alone.losses[step]).epsilon(1e-4));
  }
  for (std::size_t step = 0; step < alone.gradient_norms.size(); ++step)
    CHECK(trained.gradient_norms[step] == doctest::Approx(alone.gradient_norms[step]).epsilon(5e-3));
  for (const double evaluation : trained.evaluations)
    CHECK(evaluation == doctest::Approx(alone.evaluations.front()).epsilon(1e-4));
  CHECK(largest_difference(trained, alone) < 2e-3);
}

struct Model {
  const char* name;
  Settings settings;
};

/// Small learning rates: sums in another order then stay close for many steps.
const Settings gentle{"train.lr=0.002", "train.min_lr=0.002"};

Settings tiny_gpt_oss() {
  return {"model.family=gpt_oss",   "model.pattern=~E*E",
          "model.layers=2",         "model.hidden=32",
          "model.heads=4",          "model.kv_heads=2",
          "model.head_dim=8",       "model.experts=4",
          "model.topk=2",           "model.expert_ffn=24",
          "model.vocab=61",         "model.seq=16",
          "model.rope_factor=4",    "model.rope_original_seq=8",
          "model.sliding_window=5", "train.microbatch=2",
          "train.steps=100",        "seed=5"};
}

std::vector<Model> models() {
  return {{"experts with losses and jitter",
           and_more(and_more(tiny_experts(), gentle),
                    {"train.balance_loss=0.01", "train.router_z_loss=0.001", "train.router_jitter=0.01"})},
          {"biases and dropout", and_more(and_more(tiny_gpt_oss(), gentle), {"model.dropout=0.1"})},
          {"hybrid with a shared expert", and_more(tiny_hybrid(), gentle)},
          {"capacity", and_more(and_more(tiny_experts(), gentle), {"train.expert_capacity=0.8"})}};
}

const std::vector<std::string> dispatches{"parallel.expert_dispatch=all_to_all",
                                          "parallel.expert_dispatch=all_gather"};

}  // namespace

TEST_CASE("50 steps with the experts on several ranks give the losses and weights of one rank") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const Trained alone = train(model.settings, 4, 50);
    for (const std::string& dispatch : dispatches)
      for (const auto& [data, expert] : std::vector<std::pair<int, int>>{{2, 2}, {4, 4}, {4, 2}}) {
        CAPTURE(dispatch);
        CAPTURE(data);
        CAPTURE(expert);
        const Trained trained =
            train(and_more(model.settings, {dispatch, "parallel.data=" + std::to_string(data),
                                            "parallel.expert=" + std::to_string(expert)}),
                  4 / data, 50);
        CHECK(trained.mode == graph::StepMode::replay);
        check_close(trained, alone);
      }
  }
}

TEST_CASE("experts on several ranks are replayed as they run eagerly, bit for bit, under every policy") {
  for (const Model& model : models())
    for (const std::string& dispatch : dispatches) {
      CAPTURE(model.name);
      CAPTURE(dispatch);
      const Settings settings = and_more(model.settings, {dispatch, "parallel.data=2", "parallel.expert=2"});
      const Trained eager = train(and_more(settings, {"graph.impl=none"}), 2, 20);
      for (const Settings& policy :
           std::vector<Settings>{{"graph.impl=full_iteration"},
                                 {"graph.impl=layer"},
                                 {"graph.impl=layer", "graph.modules=moe_router,moe_preprocess"},
                                 {"graph.impl=layer", "graph.modules=attn,moe"}}) {
        CAPTURE(policy.back());
        const Trained replayed = train(and_more(settings, policy), 2, 20);
        for (const std::string& refusal : replayed.refusals) CHECK(refusal == "");
        CHECK(replayed.mode != graph::StepMode::eager);
        CHECK(replayed.losses_of_ranks == eager.losses_of_ranks);
        CHECK((replayed.states == eager.states));
      }
    }
}

TEST_CASE("layers with experts on several ranks are computed again for backward without changing a bit") {
  for (const Model& model : models())
    for (const std::string& dispatch : dispatches) {
      CAPTURE(model.name);
      CAPTURE(dispatch);
      const Settings settings = and_more(model.settings, {dispatch, "parallel.data=2", "parallel.expert=2"});
      const Trained kept = train(settings, 2, 10);
      for (const char* recompute : {"train.recompute=moe", "train.recompute=full"}) {
        const Trained again = train(and_more(settings, {recompute}), 2, 10);
        CHECK(again.losses_of_ranks == kept.losses_of_ranks);
        CHECK((again.states == kept.states));
      }
    }
}

TEST_CASE(
    "experts whose widths tensor ranks share give the losses and weights of one rank, and replay as "
    "eagerly") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const Trained alone = train(model.settings, 2, 50);
    const bool drops = std::ranges::find(model.settings, "model.dropout=0.1") != model.settings.end();
    for (const Settings& parallel : std::vector<Settings>{
             {"parallel.tensor=2"},
             {"parallel.tensor=2", "parallel.sequence=true"},
             {"parallel.tensor=2", "parallel.data=2", "parallel.expert=2"},
             {"parallel.tensor=2", "parallel.data=2", "parallel.expert=2", "parallel.sequence=true"},
             {"parallel.tensor=2", "parallel.data=2", "parallel.expert=2", "parallel.sequence=true",
              "parallel.expert_dispatch=all_gather"},
             {"parallel.tensor=2", "parallel.data=2", "parallel.expert=2",
              "parallel.expert_dispatch=all_gather"}}) {
      CAPTURE(parallel.size());
      CAPTURE(parallel.back());
      const std::int64_t microbatches = parallel.size() > 2 ? 1 : 2;
      const Settings settings = and_more(model.settings, parallel);
      const Trained trained = train(settings, microbatches, 50);
      // Ranks that have tokens of their own drop with numbers of their own.
      if (!drops || std::ranges::find(parallel, "parallel.sequence=true") == parallel.end())
        check_close(trained, alone);
      const Trained eager = train(and_more(settings, {"graph.impl=none"}), microbatches, 50);
      CHECK(trained.losses_of_ranks == eager.losses_of_ranks);
      CHECK((trained.states == eager.states));
      const Trained layers =
          train(and_more(settings, {"graph.impl=layer", "train.recompute=moe"}), microbatches, 50);
      CHECK(layers.losses_of_ranks == eager.losses_of_ranks);
      CHECK((layers.states == eager.states));
    }
  }
}

TEST_CASE("experts on several ranks of the stages of a pipeline give the losses and weights of one rank") {
  const Settings settings = and_more(tiny_gpt_oss(), gentle);
  const Trained alone = train(settings, 4, 20);
  for (const std::string& dispatch : dispatches) {
    CAPTURE(dispatch);
    const Settings parallel{dispatch, "parallel.pipeline=2", "parallel.data=2", "parallel.expert=2"};
    check_close(train(and_more(settings, parallel), 2, 20), alone);
  }
}

TEST_CASE("bfloat16 experts on several ranks stay beside those of one rank, and replay as eagerly") {
  for (const Settings& family : {tiny_gpt_oss(), tiny_hybrid()})
    for (const std::string& dispatch : dispatches) {
      CAPTURE(family.front());
      CAPTURE(dispatch);
      const Settings settings = and_more(and_more(family, gentle), {"train.precision=bf16", dispatch});
      const Trained alone = train(settings, 2, 20);
      const Settings parallel =
          and_more(settings, {"parallel.data=2", "parallel.expert=2", "parallel.tensor=2"});
      const Trained trained = train(parallel, 1, 20),
                    eager = train(and_more(parallel, {"graph.impl=none"}), 1, 20);
      for (std::size_t step = 0; step < alone.losses.size(); ++step)
        CHECK(trained.losses[step] == doctest::Approx(alone.losses[step]).epsilon(1e-2));
      CHECK(trained.losses_of_ranks == eager.losses_of_ranks);
      CHECK((trained.states == eager.states));
    }
}

TEST_CASE("where one rank's experts do not get room, all ranks do the step again and none loses a token") {
  for (const std::string& dispatch : dispatches) {
    CAPTURE(dispatch);
    const Settings settings =
        and_more(and_more(tiny_experts(), gentle), {dispatch, "parallel.data=2", "parallel.expert=2"});
    const Trained whole = train(settings, 2, 50);
    REQUIRE(*std::ranges::max_element(whole.rows_needed) <= 1);
    // Between what the steps need, so that some fit and others do not.
    std::vector<double> sorted = whole.rows_needed;
    std::ranges::sort(sorted);
    REQUIRE(sorted.front() < sorted.back());
    const double budget = std::midpoint(sorted.front(), sorted.back());
    const Trained tight = train(and_more(settings, {"train.expert_budget=" + std::to_string(budget)}), 2, 50);
    CHECK(tight.steps_over_budget[0] > 0);
    CHECK(tight.steps_over_budget[0] < 50);
    CHECK(tight.steps_over_budget[1] == tight.steps_over_budget[0]);
    check_close(tight, whole);
  }
}

TEST_CASE("rows that experts need count relative to all tokens' choices, on one rank and on several") {
  // One rank needs a row for each choice of a live token; two ranks of which each sends half need half.
  const Settings settings = and_more(tiny_experts(), gentle);
  const Trained alone = train(settings, 2, 1);
  CHECK(alone.rows_needed[0] == 1);
  const Trained trained = train(and_more(settings, {"parallel.data=2", "parallel.expert=2"}), 1, 1);
  CHECK(trained.rows_needed[0] >= 0.5);
  CHECK(trained.rows_needed[0] < 1);
}

TEST_CASE("the capacity that experts would have needed is told alike on one rank and on several") {
  const Settings settings = and_more(and_more(tiny_experts(), gentle), {"train.expert_capacity=1"});
  const Trained alone = train(settings, 2, 5);
  REQUIRE(*std::ranges::max_element(alone.rows_needed) > 1);
  for (const std::string& dispatch : dispatches) {
    CAPTURE(dispatch);
    const Trained trained =
        train(and_more(settings, {dispatch, "parallel.data=2", "parallel.expert=2"}), 1, 5);
    CHECK(trained.rows_needed == alone.rows_needed);
  }
}
