// SPDX-License-Identifier: Apache-2.0
#include "rank_groups.hpp"
#include "tiny_models.hpp"
#include "whole_tensors.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/pipeline_schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

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
  std::int64_t stages = 1, virtual_stages = 1, microbatches = 1, data = 1, tensor = 1;
  std::vector<std::string> settings() const {
    return {"parallel.pipeline=" + std::to_string(stages),
            "parallel.virtual_stages=" + std::to_string(virtual_stages),
            "parallel.data=" + std::to_string(data),
            "parallel.tensor=" + std::to_string(tensor),
            "train.microbatches=" + std::to_string(microbatches),
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
  result.ranks.resize(static_cast<std::size_t>(ways.stages * ways.data * ways.tensor));
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

TEST_CASE("stages replay the bits of eager steps under every policy") {
  const std::vector<std::vector<std::string>> policies{
      {"graph.impl=full_iteration"},
      {"graph.impl=full_iteration", "graph.optimizer=separate"},
      {"graph.impl=layer"},
      {"graph.impl=layer", "graph.modules=attn"},
      {"graph.checksums=true"}};
  for (const auto& [model, ways] : std::vector<std::pair<Model, Ways>>{
           {llama(), {4, 1, 4}}, {gpt2(), {2, 2, 4}}, {experts(), {2, 1, 2, 2}}, {hybrid(), {2, 1, 3}}}) {
    CAPTURE(model.name);
    Trainings eager;
    train_on_ranks(and_more(model.settings, {"graph.impl=none"}), ways, 20, eager);
    for (const auto& policy : policies) {
      CAPTURE(policy.back());
      Trainings captured;
      train_on_ranks(and_more(model.settings, policy), ways, 20, captured);
      for (std::size_t rank = 0; rank < eager.ranks.size(); ++rank) {
        CHECK(captured.ranks[rank].refusal == "");
        CHECK(captured.ranks[rank].report.mode == graph::StepMode::replay);
        CHECK(captured.ranks[rank].losses == eager.ranks[rank].losses);
        CHECK(captured.ranks[rank].gradient_norms == eager.ranks[rank].gradient_norms);
        CHECK(captured.ranks[rank].state == eager.ranks[rank].state);
      }
      CHECK(largest_difference(captured.weights, eager.weights) == 0);
    }
  }
}

TEST_CASE("recomputing and delaying change no bit of stages on ranks") {
  for (const Model& model : {llama(), hybrid()}) {
    CAPTURE(model.name);
    Trainings plain;
    train_on_ranks(model.settings, {2, 2, 4}, 10, plain);
    for (const char* more : {"train.recompute=full", "train.recompute=attn,mlp", "train.delay_wgrad=true"}) {
      CAPTURE(more);
      Trainings changed;
      train_on_ranks(and_more(model.settings, {more}), {2, 2, 4}, 10, changed);
      CHECK(changed.ranks[0].losses == plain.ranks[0].losses);
      CHECK(largest_difference(changed.weights, plain.weights) == 0);
    }
  }
}

TEST_CASE("stages of data ranks with a sharded optimizer, and of tensor ranks, train like one rank") {
  constexpr std::int64_t steps = 20;
  const std::vector<std::string> sharded{"parallel.shard_optimizer=true"}, sequence{"parallel.sequence=true"};
  const std::vector<std::tuple<Model, Ways, std::vector<std::string>>> cases{
      {gpt2(), {2, 1, 2, 2}, sharded},
      {gpt2(), {2, 1, 2, 1, 2}, {}},
      {hybrid(), {2, 1, 2, 2}, sharded},
      {llama(), {2, 2, 2, 1, 2}, sequence},
      {gpt2(), {2, 1, 1, 2, 2}, sharded}};
  for (const auto& [model, ways, more] : cases) {
    CAPTURE(model.name);
    CAPTURE(ways.data);
    CAPTURE(ways.tensor);
    // Tensor ranks need two key-value heads, and draw their own dropout of attention.
    const auto settings = and_more(
        model.settings, ways.tensor == 1 || model.exact
                            ? std::vector<std::string>{"model.kv_heads=2"}
                            : std::vector<std::string>{"model.dropout=0", "model.attention_dropout=0"});
    Trainings alone, apart;
    train_alone(settings, ways, steps, alone);
    train_on_ranks(and_more(settings, more), ways, steps, apart);
    for (const Training& training : apart.ranks) {
      CHECK(training.refusal == "");
      for (std::size_t step = 0; step < steps; ++step) {
        CHECK(training.losses[step] == doctest::Approx(alone.ranks[0].losses[step]).epsilon(1e-4));
        CHECK(training.gradient_norms[step] ==
              doctest::Approx(alone.ranks[0].gradient_norms[step]).epsilon(1e-2));
      }
      CHECK(training.evaluated == doctest::Approx(alone.ranks[0].evaluated).epsilon(1e-4));
    }
    CHECK(largest_difference(alone.weights, apart.weights) < 2e-3);
  }
}

TEST_CASE("the first and the last stage keep the same bits of a tied table") {
  for (const char* more : {"parallel.shard_optimizer=false", "parallel.shard_optimizer=true"}) {
    const Ways ways{2, 1, 2, 2};
    const auto configuration = resolve(and_more(gpt2().settings, {more}), ways.settings());
    std::vector<std::vector<std::byte>> tables(4);
    on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
      const auto trainer = model::make_trainer(configuration, groups);
      train(*trainer, whole_of(gpt2().settings, ways), trainer->layout().shard().place.data, 10);
      const auto boxes = trainer->layout().boxes();
      const auto table = std::ranges::find_if(
          boxes, [](const model::ParameterBox& box) { return box.name.ends_with("wte.weight"); });
      REQUIRE(table != boxes.end());
      tables[static_cast<std::size_t>(rank)] = trainer->read(model::ParameterArray::weights, *table);
    });
    for (const auto& table : tables) {
      CHECK(!table.empty());
      CHECK(table == tables[0]);
    }
  }
}

TEST_CASE("a step whose experts need more rows than are kept is done again by all stages") {
  const auto settings =
      and_more(experts().settings, {"train.expert_budget=0.3", "graph.impl=full_iteration"});
  const Ways ways{2, 1, 2};
  const model::Configuration configuration = resolve(settings, ways.settings());
  const model::Configuration whole = whole_of(settings, ways);
  const auto alone = model::make_trainer(whole);
  const Batch batch = random_batch(whole, 0);
  alone->set_batch(batch.ids, batch.labels);
  const model::StepResult expected = alone->step(0.01);
  REQUIRE(expected.over_budget);
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t) {
    const auto trainer = model::make_trainer(configuration, groups);
    trainer->set_batch(batch.ids, batch.labels);
    const model::StepResult result = trainer->step(0.01);
    CHECK(result.over_budget);
    CHECK(result.expert_rows_needed == expected.expert_rows_needed);
    CHECK(result.loss == doctest::Approx(expected.loss).epsilon(1e-6));
    CHECK(trainer->tokens_of_experts() == alone->tokens_of_experts());
  });
}

TEST_CASE("a stage has its own layers, transfers for each microbatch, and logits only if it is the last") {
  const model::Configuration configuration = resolve(llama().settings, Ways{2, 1, 2}.settings());
  const model::Configuration whole = whole_of(llama().settings, {2, 1, 2});
  const auto alone = model::make_trainer(whole);
  const Batch batch = random_batch(whole, 0);
  const auto one = std::span(batch.ids).first(8), labels = std::span(batch.labels).first(8);
  const double loss = alone->evaluate(one, labels);
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    const graph::Outline& outline = trainer->outline();
    const auto has = [&](const std::string& name) {
      return std::ranges::find(outline.segments(), name, &graph::Segment::name) != outline.segments().end();
    };
    const bool first = rank == 0;
    for (const char* name :
         {"microbatch.0/embedding/forward", "microbatch.1/layer.1/attn/backward",
          "microbatch.1/pipeline/send_activation.0", "microbatch.0/pipeline/receive_gradient.1"})
      CHECK(has(name) == first);
    for (const char* name :
         {"microbatch.0/head/forward", "microbatch.1/layer.2/attn/backward",
          "microbatch.1/pipeline/receive_activation.0", "microbatch.0/pipeline/send_gradient.1"})
      CHECK(has(name) == !first);
    CHECK(has("pipeline/metrics"));
    CHECK(trainer->evaluate(one, labels) == loss);
    if (first)
      CHECK_THROWS_WITH_AS(trainer->logits(),
                           "stage 0 of 2 has no logits: ask a rank of the last stage for them",
                           ConfigurationError);
    else
      CHECK(trainer->logits() == alone->logits());
  });
}

TEST_CASE("a stage keeps the activations of as many microbatches as are in flight there") {
  for (const Ways& ways : {Ways{4, 1, 8}, Ways{2, 2, 4}}) {
    const model::Configuration configuration = resolve(llama().settings, ways.settings());
    const model::PipelineShape shape{ways.stages, ways.virtual_stages, ways.microbatches};
    on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t stage) {
      const auto trainer = model::make_trainer(configuration, groups);
      const graph::Outline& outline = trainer->outline();
      std::vector<std::int64_t> changes(outline.segments().size() + 1, 0);
      for (const auto& activation : trainer->memory_plan().activations)
        if (outline.buffer(activation.buffer).name.ends_with("/attn/qkv")) {
          ++changes[activation.first_segment];
          --changes[activation.last_segment + 1];
        }
      std::int64_t now = 0, most = 0;
      for (const std::int64_t change : changes) most = std::max(most, now += change);
      CHECK(most == model::in_flight(shape, stage));
    });
  }
}

TEST_CASE("a stage that dies in the middle of a training ends the others with its name") {
  const model::Configuration configuration = resolve(llama().settings, Ways{4, 1, 4}.settings());
  std::vector<std::string> sentences(4);
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    try {
      const auto trainer = model::make_trainer(configuration, groups);
      for (std::int64_t step = 0; step < 20; ++step) {
        if (rank == 1 && step == 7) {
          groups.pipeline->close();
          return;
        }
        const Batch batch = random_batch(configuration, step);
        trainer->set_batch(batch.ids, batch.labels);
        trainer->step(configuration.train.lr);
      }
    } catch (const CommunicationError& error) {
      sentences[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  for (const std::size_t rank : {0, 2, 3}) {
    CAPTURE(sentences[rank]);
    CHECK(sentences[rank].starts_with("rank 1 of 'pipeline'"));
    CHECK(sentences[rank].ends_with("has left the group"));
  }
}
