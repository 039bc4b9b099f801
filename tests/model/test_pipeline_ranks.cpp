// SPDX-License-Identifier: Apache-2.0
#include "rank_groups.hpp"
#include "trainers.hpp"
#include "whole_tensors.hpp"

#include <encore/backend/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace {

using namespace encore;
using namespace encore::tests;

std::vector<std::string> and_more(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// Four layers of width 16 over sequences of 8 tokens; small learning rates keep sums in another order close for many steps.
std::vector<std::string> four_layers(std::vector<std::string> settings) {
  return and_more(std::move(settings),
                  {"model.layers=4", "model.hidden=16", "model.heads=2", "model.ffn=32", "model.vocab=31",
                   "model.seq=8", "train.microbatch=1", "train.lr=0.002", "train.min_lr=0.002"});
}

struct Model {
  const char* name;
  std::vector<std::string> settings;
  bool exact;  ///< no sum has another order than on one rank
};

Model llama() {
  return {"llama", and_more(four_layers(tiny_model("llama")), {"model.kv_heads=1", "train.clip=0"}), true};
}
Model gpt2() {
  return {"gpt2, tied, with dropout",
          and_more(four_layers(tiny_model("gpt2")), {"model.dropout=0.1", "model.attention_dropout=0.1"}),
          false};
}
Model experts() {
  return {"experts with losses",
          and_more(four_layers(tiny_experts()), {"model.pattern=*-*E*E*E", "model.kv_heads=1",
                                                 "train.balance_loss=0.01", "train.router_z_loss=0.001"}),
          false};
}
Model hybrid() {
  return {"hybrid with biases of experts",
          and_more(four_layers(tiny_hybrid()), {"model.pattern=M*-E", "model.kv_heads=1", "train.clip=0"}),
          true};
}

struct Ways {
  std::int64_t stages = 1, virtual_stages = 1, microbatches = 1, data = 1;
  std::vector<std::string> settings() const {
    return {"parallel.pipeline=" + std::to_string(stages),
            "parallel.virtual_stages=" + std::to_string(virtual_stages),
            "parallel.data=" + std::to_string(data), "train.microbatches=" + std::to_string(microbatches),
            "backend=serial"};
  }
};

/// What a rank's training came to.
struct Training {
  std::vector<double> losses, gradient_norms, balance_losses;
  TrainingState state;
  std::vector<std::int32_t> tokens_of_experts;
  double evaluated = 0;
  std::string refusal;
  graph::StepReport report;
};

struct Trainings {
  std::vector<Training> ranks;
  WholeTensors weights;
};

Training train(model::Trainer& trainer, const model::Configuration& whole, std::int64_t data_rank,
               std::int64_t steps) {
  const auto& of = trainer.configuration().train;
  const auto count = static_cast<std::size_t>(of.microbatches * of.microbatch * of.seq);
  const std::size_t begin = static_cast<std::size_t>(data_rank) * count;
  Training result;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch batch = random_batch(whole, step);
    trainer.set_batch(std::span(batch.ids).subspan(begin, count),
                      std::span(batch.labels).subspan(begin, count));
    const model::StepResult of_step = trainer.step(of.lr);
    result.losses.push_back(of_step.loss);
    result.gradient_norms.push_back(of_step.gradient_norm);
    result.balance_losses.push_back(of_step.balance_loss);
    result.report = of_step.report;
  }
  result.state = state_of(trainer);
  result.tokens_of_experts = trainer.tokens_of_experts();
  result.refusal = trainer.refusal();
  const Batch batch = random_batch(whole, steps);
  const auto one = static_cast<std::size_t>(of.microbatch * of.seq);
  result.evaluated = trainer.evaluate(std::span(batch.ids).first(one), std::span(batch.labels).first(one));
  return result;
}

model::Configuration whole_of(const std::vector<std::string>& settings, const Ways& ways) {
  return resolve(settings, Ways{1, 1, ways.microbatches * ways.data, 1}.settings());
}

void train_on_ranks(const std::vector<std::string>& settings, const Ways& ways, std::int64_t steps,
                    Trainings& result) {
  const model::Configuration configuration = resolve(settings, ways.settings());
  const model::Configuration whole = whole_of(settings, ways);
  result.ranks.resize(static_cast<std::size_t>(ways.stages * ways.data));
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    result.ranks[static_cast<std::size_t>(rank)] =
        train(*trainer, whole, trainer->layout().shard().place.data, steps);
    result.weights.add(*trainer, model::ParameterArray::weights);
  });
}

void train_alone(const std::vector<std::string>& settings, const Ways& ways, std::int64_t steps,
                 Trainings& result) {
  const model::Configuration whole = whole_of(settings, ways);
  const auto trainer = model::make_trainer(whole);
  result.ranks.push_back(train(*trainer, whole, 0, steps));
  result.weights.add(*trainer, model::ParameterArray::weights);
}

double largest_difference(const WholeTensors& first, const WholeTensors& second) {
  REQUIRE(first.tensors().size() == second.tensors().size());
  double difference = 0, scale = 0;
  for (const auto& [name, values] : first.tensors()) {
    CAPTURE(name);
    const std::vector<float>& others = second.tensors().at(name);
    REQUIRE(others.size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference = std::max(difference, std::abs(double(values[i]) - double(others[i])));
      scale = std::max(scale, std::abs(double(values[i])));
    }
  }
  return difference / scale;
}

}  // namespace

TEST_CASE("50 steps on stages of their own give the losses and weights of one rank") {
  constexpr std::int64_t steps = 50;
  const std::vector<std::pair<Model, std::vector<Ways>>> cases{
      {llama(), {{2, 1, 1}, {2, 1, 4}, {4, 1, 8}, {4, 1, 3}, {2, 2, 4}, {2, 1, 2, 2}}},
      {gpt2(), {{2, 1, 3}, {4, 1, 4}, {2, 2, 2}, {2, 1, 2, 2}}},
      {experts(), {{2, 1, 2}, {4, 1, 4}, {2, 2, 2}, {2, 1, 2, 2}}},
      {hybrid(), {{2, 1, 2}, {4, 1, 5}, {2, 2, 2}}}};
  for (const auto& [model, all_ways] : cases)
    for (const Ways& ways : all_ways) {
      CAPTURE(model.name);
      CAPTURE(ways.stages);
      CAPTURE(ways.virtual_stages);
      CAPTURE(ways.microbatches);
      CAPTURE(ways.data);
      Trainings alone, apart;
      train_alone(model.settings, ways, steps, alone);
      train_on_ranks(model.settings, ways, steps, apart);
      const bool exact = model.exact && ways.data == 1;
      const Training& expected = alone.ranks[0];
      for (const Training& training : apart.ranks) {
        CHECK(training.refusal == "");
        CHECK(training.report.mode == graph::StepMode::replay);
        CHECK(training.losses == apart.ranks[0].losses);
        CHECK(training.gradient_norms == apart.ranks[0].gradient_norms);
        CHECK(training.balance_losses == apart.ranks[0].balance_losses);
        CHECK(training.tokens_of_experts == apart.ranks[0].tokens_of_experts);
        CHECK(training.evaluated == apart.ranks[0].evaluated);
        CHECK(training.tokens_of_experts.size() == expected.tokens_of_experts.size());
        if (exact) {
          CHECK(training.losses == expected.losses);
          CHECK(training.tokens_of_experts == expected.tokens_of_experts);
          CHECK(training.evaluated == expected.evaluated);
        }
        for (std::size_t step = 0; step < steps; ++step) {
          CHECK(training.losses[step] == doctest::Approx(expected.losses[step]).epsilon(1e-4));
          CHECK(training.gradient_norms[step] ==
                doctest::Approx(expected.gradient_norms[step]).epsilon(1e-2));
          CHECK(training.balance_losses[step] ==
                doctest::Approx(expected.balance_losses[step]).epsilon(1e-3));
        }
        CHECK(training.evaluated == doctest::Approx(expected.evaluated).epsilon(1e-4));
      }
      const double difference = largest_difference(alone.weights, apart.weights);
      CHECK(difference < 2e-3);
      if (exact) CHECK(difference == 0);
    }
}
