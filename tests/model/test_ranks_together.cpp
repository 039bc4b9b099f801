// SPDX-License-Identifier: Apache-2.0
// What one rank notices alone must not make it do other steps than the rest.
#include "rank_groups.hpp"
#include "tiny_models.hpp"

#include <encore/model/replay_comparison.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace encore;
using namespace encore::tests;
using model::ParameterArray;

/// Two stages, of which the second has nothing to record.
model::Configuration one_stage_recorded(const std::vector<std::string>& more) {
  std::vector<std::string> settings = tiny_hybrid();
  for (const char* setting : {"model.layers=6", "model.pattern=MMM*-E", "parallel.pipeline=2",
                              "train.microbatches=2", "backend=serial", "graph.impl=layer",
                              "graph.modules=mamba", "graph.optimizer=eager", "graph.warmup_steps=0"})
    settings.emplace_back(setting);
  return resolve(settings, more);
}

void set_batch_of(std::int64_t done, model::Trainer& trainer) {
  const Batch batch = random_batch(trainer.configuration(), done);
  trainer.set_batch(batch.ids, batch.labels);
}

}  // namespace

TEST_CASE("stages of which one records nothing give up a comparison together, and train on") {
  const model::Configuration configuration = one_stage_recorded({});
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    const model::ReplayComparison comparison = model::compare_eager_with_replay(
        *trainer, 3, {.set_batch = set_batch_of, .learning_rate = [](std::int64_t) { return 0.01; }});
    CHECK(comparison.steps == 0);
    CHECK(comparison.why_not ==
          (rank == 0 ? "another rank runs its steps eagerly" : "the policy captures nothing of this step"));
    set_batch_of(0, *trainer);
    CHECK(trainer->step(0.01).step == 1);
  });
}

TEST_CASE("stages of which one records nothing validate no step, and none waits for another") {
  const model::Configuration configuration = one_stage_recorded({"graph.validate_every=2"});
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t) {
    const auto trainer = model::make_trainer(configuration, groups);
    for (std::int64_t step = 0; step < 6; ++step) {
      set_batch_of(step, *trainer);
      CHECK(!trainer->step(0.01).validated);
    }
  });
}

TEST_CASE("ranks of every kind validate their replays") {
  for (const auto& more :
       std::vector<std::vector<std::string>>{{"parallel.data=2", "parallel.shard_optimizer=true"},
                                             {"parallel.tensor=2", "parallel.sequence=true"},
                                             {"parallel.data=2", "parallel.expert=2"},
                                             {"parallel.pipeline=2", "train.microbatches=2"}}) {
    CAPTURE(more.front());
    std::vector<std::string> settings = tiny_experts();
    settings.insert(settings.end(), more.begin(), more.end());
    const model::Configuration configuration =
        resolve(settings, {"backend=serial", "graph.validate_every=2", "graph.warmup_steps=0"});
    on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t) {
      const auto trainer = model::make_trainer(configuration, groups);
      for (std::int64_t step = 0; step < 6; ++step) {
        set_batch_of(step, *trainer);
        CHECK(trainer->step(0.01).validated == (step % 2 == 1));
      }
    });
  }
}

TEST_CASE("a replay that differs on one rank alone ends the comparison on all") {
  std::vector<std::string> settings = tiny_model("llama");
  const model::Configuration configuration =
      resolve(settings, {"parallel.data=2", "parallel.shard_optimizer=true", "backend=serial"});
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    int calls = 0, spoilt = 0;
    const model::StepInputs inputs{
        .set_batch =
            [&](std::int64_t done, model::Trainer& trained) {
              set_batch_of(done, trained);
              if (++calls != spoilt || rank != 1) return;
              for (const model::ParameterBox& box : trained.layout().boxes())
                trained.write(ParameterArray::first_moment, box,
                              std::vector<std::byte>(static_cast<std::size_t>(box.elements()) * sizeof(float),
                                                     std::byte{1}));
            },
        // The moments then reach nothing else.
        .learning_rate = [](std::int64_t) { return 0.0; }};
    const auto compare = [&] {
      calls = 0;
      return model::compare_eager_with_replay(*trainer, 2, inputs, {.block_steps = 2});
    };
    CHECK(compare().difference == "");
    CHECK(compare().difference == "");  // Now the graphs are there.
    spoilt = calls;
    const std::string difference = compare().difference;
    CAPTURE(difference);
    CHECK((rank == 1 ? difference.starts_with("after step ")
                     : difference == "on another rank the replayed steps differ from the eager ones"));
  });
}

TEST_CASE("ranks skip the steps that one rank skips") {
  const std::vector<std::string> model = tiny_experts();
  const auto train = [&](const std::vector<std::string>& more, double skip_above,
                         double learning_rate = 0.002) {
    auto settings = model;
    settings.insert(settings.end(), more.begin(), more.end());
    const model::Configuration of_rank =
        resolve(settings, {"backend=serial", "train.skip_above=" + std::to_string(skip_above)});
    std::vector<std::vector<model::StepResult>> results(
        static_cast<std::size_t>(model::RankLayout(of_rank.parallel, true).ranks()));
    on_rank_layout(of_rank.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
      const auto trainer = model::make_trainer(of_rank, groups);
      for (std::int64_t step = 0; step < 20; ++step) {
        set_share_of_batch(*trainer, step);
        results[static_cast<std::size_t>(rank)].push_back(trainer->step(learning_rate));
      }
    });
    return results;
  };
  // The first step is above the limit; of the others with the first weights some are below.
  const double limit = 0.999 * train({"train.microbatches=4"}, 1e9, 0).front().front().gradient_norm;
  const auto alone = train({"train.microbatches=4"}, limit).front();
  for (const auto& more : std::vector<std::vector<std::string>>{
           {"parallel.data=2", "parallel.expert=2", "parallel.shard_optimizer=true", "train.microbatches=2"},
           {"parallel.tensor=2", "parallel.sequence=true", "train.microbatches=4"},
           {"parallel.pipeline=2", "parallel.data=2", "train.microbatches=2"}}) {
    CAPTURE(more.front());
    const auto ranks = train(more, limit);
    std::int64_t skipped = 0;
    for (std::size_t step = 0; step < alone.size(); ++step) {
      for (const auto& results : ranks) {
        CHECK(results[step].skipped == alone[step].skipped);
        CHECK(results[step].loss == doctest::Approx(alone[step].loss).epsilon(1e-4));
      }
      skipped += alone[step].skipped ? 1 : 0;
    }
    CHECK(skipped > 0);
    CHECK(skipped < 20);
  }
}
