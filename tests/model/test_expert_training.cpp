// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/memory_forecast.hpp>

#include "trainers.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>

namespace {

using namespace encore;
using namespace encore::tests;

struct Trace {
  std::vector<double> losses, norms, balance;
  std::vector<std::vector<std::int32_t>> counts;
  TrainingState state;
  std::vector<model::StepResult> results;
};

/// What is done to a trainer before a step.
using Disturbance = std::function<void(model::Trainer&, std::int64_t step)>;

Trace train(
    const std::vector<std::string>& settings, const std::vector<std::string>& more, std::int64_t steps,
    const Disturbance& disturb = [](model::Trainer&, std::int64_t) {}) {
  const auto configuration = resolve(settings, more);
  const auto trainer = model::make_trainer(configuration);
  Trace trace;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch batch = random_batch(configuration, step);
    trainer->set_batch(batch.ids, batch.labels);
    disturb(*trainer, step);
    const auto result = trainer->step(0.01 / (1.0 + 0.05 * static_cast<double>(step)));
    trace.losses.push_back(result.loss);
    trace.norms.push_back(result.gradient_norm);
    trace.balance.push_back(result.balance_loss);
    trace.counts.push_back(trainer->tokens_of_experts());
    trace.results.push_back(result);
  }
  CHECK(trainer->refusal().empty());
  trace.state = state_of(*trainer);
  return trace;
}

void check_equal(const Trace& a, const Trace& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.balance == b.balance);
  CHECK(a.counts == b.counts);
  CHECK(a.state == b.state);
}

/// In bf16 a GPU takes other products than in fp32.
std::vector<std::pair<std::string, std::string>> backends_and_precisions() {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& backend : backend_names())
    for (const char* precision : {"fp32", "bf16"}) pairs.emplace_back(backend, precision);
  return pairs;
}

/// Every set of modules that may be recorded together in a model that has them all.
std::vector<std::vector<std::string>> scopes_of_hybrid() {
  std::vector<std::vector<std::string>> scopes;
  for (const std::string attn : {"", "attn,"})
    for (const std::string mlp : {"", "mlp,"})
      for (const std::string mamba : {"", "mamba,"})
        for (const std::string experts : {"", "moe,", "moe_router,", "moe_router,moe_preprocess,"}) {
          std::string modules = attn + mlp + mamba + experts;
          if (modules.empty()) continue;
          modules.pop_back();
          scopes.push_back({"graph.impl=layer", "graph.modules=" + modules});
        }
  scopes.push_back({"graph.impl=layer"});
  scopes.push_back({"graph.impl=full_iteration"});
  scopes.push_back({"graph.impl=full_iteration", "graph.optimizer=separate"});
  scopes.push_back({"graph.impl=full_iteration", "graph.optimizer=eager"});
  return scopes;
}

TEST_CASE("every scope of a hybrid stack replays 100 steps as the eager run, bit for bit") {
  for (const auto& [backend, precision] : backends_and_precisions()) {
    CAPTURE(backend);
    CAPTURE(precision);
    auto settings = tiny_hybrid();
    for (const std::string& more :
         {"backend=" + backend, "train.precision=" + precision, std::string("model.dropout=0.1"),
          std::string("train.balance_loss=0.01"), std::string("train.router_z_loss=0.001"),
          std::string("train.router_jitter=0.01")})
      settings.push_back(more);
    const Trace eager = train(settings, {"graph.impl=none"}, 100);
    CHECK(std::isfinite(eager.losses.back()));
    CHECK(eager.losses.back() < eager.losses.front());
    for (const auto& scope : scopes_of_hybrid()) {
      CAPTURE(scope.back());
      const Trace replay = train(settings, scope, 100);
      check_equal(replay, eager);
      const auto& last = replay.results.back().report;
      CHECK(last.mode == graph::StepMode::replay);
      CHECK(last.host_syncs == 0);
      CHECK(last.host_copies == 0);
      CHECK(last.fallbacks == 0);
      CHECK(last.graph_nodes > 0);
    }
  }
}

TEST_CASE("all tokens to one expert, and experts with none, change nothing in a recorded run") {
  for (const auto& [backend, precision] : backends_and_precisions()) {
    CAPTURE(backend);
    CAPTURE(precision);
    auto settings = tiny_experts();
    settings.push_back("backend=" + backend);
    settings.push_back("train.precision=" + precision);
    settings.push_back("train.balance_loss=0.01");
    // A router without weights finds all experts equal and takes the first ones.
    const Disturbance disturb = [](model::Trainer& trainer, std::int64_t step) {
      if (step != 10 && step != 11) return;
      for (const auto& slice : trainer.layout().slices())
        if (slice.name.ends_with("mlp.gate.weight"))
          trainer.set_weights(slice, std::vector<float>(static_cast<std::size_t>(slice.elements()), 0.0F));
    };
    const Trace eager = train(settings, {"graph.impl=none"}, 20, disturb);
    CHECK(eager.counts[10] == std::vector<std::int32_t>{32, 32, 0, 0});
    CHECK(eager.counts[9] != eager.counts[10]);
    for (const auto& scope : std::vector<std::vector<std::string>>{{"graph.impl=full_iteration"},
                                                                   {"graph.impl=layer", "graph.modules=moe"},
                                                                   {"graph.impl=layer"}}) {
      const Trace replay = train(settings, scope, 20, disturb);
      check_equal(replay, eager);
      for (std::size_t step = 4; step < 20; ++step) {
        CHECK(replay.results[step].report.mode == graph::StepMode::replay);
        CHECK(replay.results[step].report.host_syncs == 0);
      }
    }
  }
}

/// Trains on sequences of these lengths in turn, padded where the configuration has buckets.
Trace train_lengths(const std::vector<std::string>& settings, const std::vector<std::string>& more,
                    const std::vector<std::int64_t>& lengths) {
  const auto configuration = resolve(settings, more);
  const auto trainer = model::make_trainer(configuration);
  Trace trace;
  for (std::size_t step = 0; step < lengths.size(); ++step) {
    const std::int64_t length = lengths[step];
    Batch batch;
    std::mt19937 generator(static_cast<unsigned>(70 + step));
    for (std::int64_t i = 0; i < configuration.train.microbatch * length; ++i) {
      batch.ids.push_back(static_cast<std::int32_t>(generator() % 61));
      batch.labels.push_back(static_cast<std::int32_t>(generator() % 61));
    }
    trainer->set_batch(batch.ids, batch.labels, {1, configuration.train.microbatch, length});
    const auto result = trainer->step(0.01);
    trace.losses.push_back(result.loss);
    trace.norms.push_back(result.gradient_norm);
    trace.balance.push_back(result.balance_loss);
    trace.counts.push_back(trainer->tokens_of_experts());
    trace.results.push_back(result);
  }
  trace.state = state_of(*trainer);
  return trace;
}

TEST_CASE("tokens that only pad a sequence go to no expert and count in no statistic") {
  for (const std::string& backend : backend_names()) {
    CAPTURE(backend);
    for (auto settings : {tiny_experts(), tiny_hybrid()}) {
      settings.push_back("backend=" + backend);
      settings.push_back("train.balance_loss=0.1");
      settings.push_back("train.router_z_loss=0.01");
      const std::vector<std::int64_t> lengths{16, 5, 16, 1, 7, 3, 16, 1};
      const Trace padded = train_lengths(settings, {"graph.buckets=16", "graph.warmup_steps=1"}, lengths);
      const Trace exact = train_lengths(settings, {"graph.impl=none"}, lengths);
      CHECK(padded.counts == exact.counts);
      for (std::size_t step = 0; step < lengths.size(); ++step) {
        CHECK(std::accumulate(exact.counts[step].begin(), exact.counts[step].end(), 0) ==
              2 * 2 * lengths[step]);
        CHECK(padded.losses[step] == doctest::Approx(exact.losses[step]).epsilon(1e-5));
        CHECK(padded.norms[step] == doctest::Approx(exact.norms[step]).epsilon(1e-4));
        CHECK(padded.balance[step] == doctest::Approx(exact.balance[step]).epsilon(1e-5));
        if (step > 1) CHECK(padded.results[step].report.mode == graph::StepMode::replay);
      }
    }
  }
}

TEST_CASE("a step of one token in the middle of a run replays as it runs eagerly, bit for bit") {
  for (const auto& [backend, precision] : backends_and_precisions()) {
    CAPTURE(backend);
    CAPTURE(precision);
    for (auto settings : {tiny_experts(), tiny_hybrid()}) {
      for (const std::string& more :
           {"backend=" + backend, "train.precision=" + precision, std::string("train.microbatch=1"),
            std::string("graph.buckets=16"), std::string("train.balance_loss=0.1")})
        settings.push_back(more);
      const std::vector<std::int64_t> lengths{16, 9, 16, 12, 1, 16, 1, 1, 16};
      const Trace replay = train_lengths(settings, {}, lengths);
      const Trace eager = train_lengths(settings, {"graph.warmup_steps=100"}, lengths);
      check_equal(replay, eager);
      CHECK(std::accumulate(replay.counts[4].begin(), replay.counts[4].end(), 0) == 2);
      for (std::size_t step = 4; step < lengths.size(); ++step) {
        CHECK(replay.results[step].report.mode == graph::StepMode::replay);
        CHECK(replay.results[step].report.host_syncs == 0);
        CHECK(eager.results[step].report.mode == graph::StepMode::eager);
      }
    }
  }
}

TEST_CASE("dropped tokens are the same ones in every replay") {
  for (const std::string& backend : backend_names()) {
    auto settings = tiny_experts();
    settings.push_back("backend=" + backend);
    settings.push_back("train.expert_capacity=0.5");
    const Trace eager = train(settings, {"graph.impl=none"}, 20);
    check_equal(train(settings, {"graph.impl=full_iteration"}, 20), eager);
    check_equal(train(settings, {"graph.impl=layer", "graph.modules=moe_router,moe_preprocess"}, 20), eager);
    const Trace dropless = train(settings, {"train.expert_capacity=0"}, 20);
    CHECK(dropless.losses != eager.losses);
    const Trace roomy = train(settings, {"train.expert_capacity=4"}, 20);
    CHECK(roomy.losses.front() == doctest::Approx(dropless.losses.front()).epsilon(1e-6));
  }
}

TEST_CASE("a step over the budget of rows is finished eagerly, the graph stays, the factor is told") {
  for (const auto& [backend, precision] : backends_and_precisions()) {
    CAPTURE(backend);
    CAPTURE(precision);
    for (auto settings : {tiny_experts(), tiny_hybrid()}) {
      for (const std::string& more : {"backend=" + backend, "train.precision=" + precision,
                                      std::string("graph.buckets=16"), std::string("graph.warmup_steps=1"),
                                      std::string("model.dropout=0.1"), std::string("graph.checksums=true")})
        settings.push_back(more);
      const std::vector<std::int64_t> lengths{8, 4, 8, 16, 8, 12, 5, 8};
      const Trace full = train_lengths(settings, {}, lengths);
      const Trace tight = train_lengths(settings, {"train.expert_budget=0.5"}, lengths);
      check_equal(tight, full);
      for (std::size_t step = 1; step < lengths.size(); ++step) {
        const auto& result = tight.results[step];
        const bool over = lengths[step] > 8;
        CHECK(result.over_budget == over);
        CHECK(result.expert_rows_needed == doctest::Approx(static_cast<double>(lengths[step]) / 16));
        CHECK((result.eager_reason.find("R-10") != std::string::npos) == over);
        CHECK(result.report.fallbacks == (over ? 1 : 0));
        if (!over && step > 1) CHECK(result.report.mode == graph::StepMode::replay);
      }
    }
  }
}

TEST_CASE(
    "a step over budget that does not fit into the limit is refused with what it needs and what would help") {
  auto settings = tiny_experts();
  for (const char* more : {"backend=serial", "graph.buckets=16", "train.expert_budget=0.5"})
    settings.emplace_back(more);
  auto configuration = resolve(settings);
  configuration.graph.memory_limit = static_cast<std::int64_t>(model::forecast_memory(configuration).total());
  CHECK(model::memory_over_budget(configuration) > 0);
  const auto trainer = model::make_trainer(configuration);
  const std::vector<std::int32_t> tokens(2 * 16, 3);
  trainer->set_batch(tokens, tokens, {1, 2, 16});
  try {
    trainer->step(0.01);
    FAIL("not refused");
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    CHECK(text.find("R-10") != std::string::npos);
    CHECK(text.find("beside the") != std::string::npos);
    CHECK(text.find("raise train.expert_budget") != std::string::npos);
  }
}

TEST_CASE("a step longer than the buckets and over budget says both, and counts once") {
  auto settings = tiny_experts();
  for (const char* more : {"backend=openmp", "graph.buckets=8", "train.expert_budget=0.4"})
    settings.emplace_back(more);
  const Trace trace = train_lengths(settings, {}, {8, 8, 8, 8, 16});
  const auto& last = trace.results.back();
  CHECK(last.over_budget);
  CHECK(last.eager_reason.find("R-07") != std::string::npos);
  CHECK(last.eager_reason.find("R-10") != std::string::npos);
  CHECK(last.report.fallbacks == 1);
}

TEST_CASE(
    "a label that means padding to the trainer means an ignored token to its caller, also in evaluation") {
  auto settings = tiny_experts();
  settings.emplace_back("backend=serial");
  const auto configuration = resolve(settings);
  const auto trainer = model::make_trainer(configuration);
  Batch batch = random_batch(configuration, 0);
  const double ignored = trainer->evaluate(batch.ids, batch.labels);
  const auto logits = trainer->logits();
  for (std::int32_t& label : batch.labels)
    if (label < 0) label = std::numeric_limits<std::int32_t>::min();
  CHECK(trainer->evaluate(batch.ids, batch.labels) == ignored);
  CHECK(trainer->logits() == logits);
}

TEST_CASE("the biases of the choice of experts move once a step, against the load") {
  for (const std::string& backend : backend_names()) {
    auto settings = tiny_hybrid();
    for (const std::string& more : {"backend=" + backend, std::string("train.microbatches=2"),
                                    std::string("train.expert_bias_rate=0.25")})
      settings.push_back(more);
    const auto configuration = resolve(settings);
    const auto trainer = model::make_trainer(configuration);
    const auto bias = [&] {
      const auto slice = trainer->layout().expert_biases().at(0);
      return model::to_float(trainer->read(model::ParameterArray::expert_bias, slice),
                             *trainer->type_of(model::ParameterArray::expert_bias));
    };
    std::vector<float> expected(4, 0.0F);
    CHECK(bias() == expected);
    for (std::int64_t step = 0; step < 6; ++step) {
      const Batch batch = random_batch(configuration, step);
      trainer->set_batch(batch.ids, batch.labels);
      trainer->step(0.0);
      const auto counts = trainer->tokens_of_experts();
      CHECK(std::accumulate(counts.begin(), counts.end(), 0) == 2 * 2 * 2 * 16);
      for (std::size_t e = 0; e < 4; ++e)
        expected[e] += counts[e] == 32 ? 0.0F : counts[e] < 32 ? 0.25F : -0.25F;
      CHECK(bias() == expected);
    }
  }
}

TEST_CASE("experts computed again in backward change no bit") {
  for (const std::string& backend : backend_names())
    for (auto settings : {tiny_experts(), tiny_hybrid()}) {
      settings.push_back("backend=" + backend);
      settings.push_back("model.dropout=0.1");
      settings.push_back("train.router_jitter=0.01");
      settings.push_back("train.microbatches=2");
      const Trace kept = train(settings, {}, 12);
      check_equal(train(settings, {"train.recompute=moe"}, 12), kept);
      check_equal(train(settings, {"train.recompute=full"}, 12), kept);
      check_equal(train(settings, {"train.delay_wgrad=true"}, 12), kept);
    }
}

TEST_CASE("a hybrid resumes from its checkpoint to the same numbers, the experts' biases among them") {
  const auto path = std::filesystem::temp_directory_path() /
                    ("encore-hybrid-" + std::to_string(std::random_device{}()) + ".safetensors");
  for (const std::string& backend : backend_names())
    for (const std::string precision : {"fp32", "bf16"}) {
      auto settings = tiny_hybrid();
      for (const std::string& more :
           {"backend=" + backend, "train.precision=" + precision, std::string("model.dropout=0.1"),
            std::string("train.expert_bias_rate=0.1")})
        settings.push_back(more);
      const auto configuration = resolve(settings);
      const auto run = [&](model::Trainer& trainer, std::int64_t first, std::int64_t end) {
        for (std::int64_t step = first; step < end; ++step) {
          const Batch batch = random_batch(configuration, step);
          trainer.set_batch(batch.ids, batch.labels);
          trainer.step(0.01);
        }
      };
      const auto whole = model::make_trainer(configuration);
      run(*whole, 0, 5);
      model::save_checkpoint(path, *whole);
      run(*whole, 5, 10);
      const auto resumed = model::make_trainer(configuration);
      CHECK(model::load_checkpoint(path, *resumed).steps_done == 5);
      run(*resumed, 5, 10);
      CHECK(state_of(*resumed) == state_of(*whole));
    }
  std::filesystem::remove(path);
}

TEST_CASE("Serial and OpenMP route and train a hybrid alike, bit for bit") {
  auto settings = tiny_hybrid();
  settings.push_back("train.balance_loss=0.01");
  check_equal(train(settings, {"backend=serial"}, 20), train(settings, {"backend=openmp"}, 20));
}

}  // namespace
