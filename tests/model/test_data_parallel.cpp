// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"
#include "tiny_models.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/step_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace {

using namespace encore;
using namespace encore::tests;

/// What a rank's training came to.
struct Training {
  std::vector<double> losses, gradient_norms;
  TrainingState state;
  std::vector<float> weights;
  std::vector<std::int32_t> tokens_of_experts;
  std::string refusal;
  graph::StepReport report;
};

std::vector<float> weights_of(model::Trainer& trainer) {
  std::vector<float> all;
  for (const auto& slice : trainer.layout().slices()) {
    const auto values = model::to_float(trainer.read(model::ParameterArray::weights, slice),
                                        *trainer.type_of(model::ParameterArray::weights));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

Training train(const model::Configuration& configuration, const model::RankGroups& groups,
               std::int64_t steps) {
  const auto trainer = model::make_trainer(configuration, groups);
  Training result;
  for (std::int64_t step = 0; step < steps; ++step) {
    set_share_of_batch(*trainer, step);
    const model::StepResult of_step = trainer->step(configuration.train.lr);
    result.losses.push_back(of_step.loss);
    result.gradient_norms.push_back(of_step.gradient_norm);
    result.report = of_step.report;
  }
  result.state = state_of(*trainer);
  result.weights = weights_of(*trainer);
  result.tokens_of_experts = trainer->tokens_of_experts();
  result.refusal = trainer->refusal();
  return result;
}

std::vector<Training> train_on_ranks(const std::vector<std::string>& settings, int ranks,
                                     std::int64_t microbatches, std::int64_t steps) {
  const model::Configuration configuration =
      resolve(settings, {"parallel.data=" + std::to_string(ranks),
                         "train.microbatches=" + std::to_string(microbatches), "backend=serial"});
  std::vector<Training> trainings(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](std::shared_ptr<backend::Transport> transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    trainings[rank] = train(configuration, {std::move(transport)}, steps);
  });
  return trainings;
}

Training train_alone(const std::vector<std::string>& settings, std::int64_t microbatches,
                     std::int64_t steps) {
  const auto configuration =
      resolve(settings, {"train.microbatches=" + std::to_string(microbatches), "backend=serial"});
  return train(configuration, {}, steps);
}

double largest_difference(const std::vector<float>& first, const std::vector<float>& second) {
  REQUIRE(first.size() == second.size());
  double difference = 0, scale = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    difference = std::max(difference, std::abs(double(first[i]) - double(second[i])));
    scale = std::max(scale, std::abs(double(first[i])));
  }
  return difference / scale;
}

struct Model {
  const char* name;
  std::vector<std::string> settings;
};

std::vector<std::string> and_more(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// Small learning rates: sums in another order then stay close for many steps.
std::vector<Model> models() {
  const std::vector<std::string> gentle{"train.lr=0.002", "train.min_lr=0.002"};
  return {{"llama", and_more(tiny_model("llama"), gentle)},
          {"gpt2 with dropout, without clipping",
           and_more(and_more(tiny_model("gpt2"), gentle),
                    {"model.dropout=0.1", "model.attention_dropout=0.1", "train.clip=0"})},
          {"experts with losses", and_more(and_more(tiny_experts(), gentle),
                                           {"train.balance_loss=0.01", "train.router_z_loss=0.001"})},
          {"hybrid with biases of experts", and_more(tiny_hybrid(), gentle)}};
}

}  // namespace

TEST_CASE("50 steps on up to 8 ranks give the losses and weights of one rank with all their microbatches") {
  constexpr std::int64_t steps = 50;
  for (const Model& model : models()) {
    CAPTURE(model.name);
    for (const auto& [ranks, microbatches] : std::map<int, std::int64_t>{{2, 2}, {3, 1}, {8, 1}}) {
      CAPTURE(ranks);
      const Training alone = train_alone(model.settings, ranks * microbatches, steps);
      for (const Training& training : train_on_ranks(model.settings, ranks, microbatches, steps)) {
        CHECK(training.refusal == "");
        CHECK(training.report.mode == graph::StepMode::replay);
        for (std::size_t step = 0; step < steps; ++step) {
          CHECK(training.losses[step] == doctest::Approx(alone.losses[step]).epsilon(1e-4));
          CHECK(training.gradient_norms[step] == doctest::Approx(alone.gradient_norms[step]).epsilon(1e-2));
        }
        CHECK(largest_difference(alone.weights, training.weights) < 2e-3);
        CHECK(training.tokens_of_experts.size() == alone.tokens_of_experts.size());
      }
    }
  }
}

TEST_CASE("ranks have the same bits as each other, and replayed the same as eagerly under every policy") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const auto eager = train_on_ranks(and_more(model.settings, {"graph.impl=none"}), 2, 2, 50);
    CHECK(eager[1].state.bytes == eager[0].state.bytes);
    CHECK(eager[1].losses == eager[0].losses);
    for (const auto& policy : std::vector<std::vector<std::string>>{
             {"graph.impl=full_iteration"},
             {"graph.impl=full_iteration", "graph.optimizer=separate"},
             {"graph.impl=layer"},
             {"graph.impl=layer", "graph.modules=attn", "graph.optimizer=eager"}}) {
      CAPTURE(policy.back());
      const auto captured = train_on_ranks(and_more(model.settings, policy), 2, 2, 50);
      for (std::size_t rank = 0; rank < captured.size(); ++rank) {
        CHECK(captured[rank].refusal == "");
        CHECK(captured[rank].report.mode == graph::StepMode::replay);
        CHECK(captured[rank].losses == eager[rank].losses);
        CHECK(captured[rank].state == eager[rank].state);
      }
    }
  }
}

TEST_CASE("each gradient is reduced exactly once a step, after its last microbatch and before its update") {
  for (const auto& more :
       std::vector<std::vector<std::string>>{{},
                                             {"train.clip=0"},
                                             {"train.delay_wgrad=true"},
                                             {"train.recompute=full"},
                                             {"parallel.pipeline=2"},
                                             {"graph.impl=layer"},
                                             {"graph.impl=layer", "graph.modules=attn,mlp"}}) {
    CAPTURE(more.empty() ? std::string() : more.back());
    const auto configuration = resolve(
        and_more(tiny_model("llama"), {"parallel.data=4", "train.microbatches=4", "backend=serial"}), more);
    const model::StepPlan plan = model::plan_step(configuration);
    const graph::Outline& outline = plan.outline;
    const graph::BufferId gradients = outline.find_buffer("gradients").value();
    const auto& segments = outline.segments();
    std::vector<std::size_t> reductions;
    std::size_t last_write = 0, first_update = segments.size();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const graph::Segment& segment = segments[i];
      if (segment.name.starts_with("data/reduce_gradients")) {
        reductions.push_back(i);
        continue;
      }
      const auto touches = [&](const std::vector<graph::BufferId>& list) {
        return std::ranges::any_of(list, [&](graph::BufferId id) {
          const auto& part = outline.buffer(id).part;
          return id == gradients || (part && part->whole == gradients);
        });
      };
      if (touches(segment.writes)) last_write = i;
      if (segment.phase == graph::Phase::update && touches(segment.reads))
        first_update = std::min(first_update, i);
    }
    REQUIRE(!reductions.empty());
    CHECK(reductions.back() > last_write);
    CHECK(reductions.back() < first_update);
    // The first bucket, of the head's gradients, does not wait for the layers'.
    CHECK((reductions.size() == 1 || reductions.front() < last_write));
    std::set<std::string> names;
    for (const std::size_t index : reductions) names.insert(segments[index].name);
    CHECK(names.size() == reductions.size());
  }
}

TEST_CASE("a trainer made in a group of another size than configured is refused") {
  const auto configuration = resolve(tiny_model("llama"), {"parallel.data=2", "backend=serial"});
  CHECK_THROWS_WITH_AS(model::make_trainer(configuration),
                       "parallel.data = 2, but the trainer is made in a group of 1 rank: start as many ranks "
                       "as are configured",
                       ConfigurationError);
}

TEST_CASE("a rank that dies in the middle of a training ends the others with its name") {
  const auto configuration = resolve(tiny_model("llama"), {"parallel.data=3", "backend=serial"});
  const auto transports = backend::thread_transports("data", 3, std::chrono::minutes(2));
  std::vector<std::string> sentences(3);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto trainer = model::make_trainer(configuration, {transports[rank]});
        for (std::int64_t step = 0; step < 20; ++step) {
          if (rank == 1 && step == 7) {
            transports[1]->close();
            return;
          }
          const Batch batch = random_batch(configuration, step);
          trainer->set_batch(batch.ids, batch.labels);
          trainer->step(configuration.train.lr);
        }
      } catch (const CommunicationError& error) {
        sentences[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(sentences[0] == "rank 1 of 'data' has left the group");
  CHECK(sentences[2] == "rank 1 of 'data' has left the group");
}
