// SPDX-License-Identifier: Apache-2.0
#include "trainers.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace {

using namespace encore;
using namespace encore::tests;

struct Trace {
  std::vector<double> losses, norms;
  TrainingState state;
  graph::StepReport last;
  friend bool operator==(const Trace& a, const Trace& b) {
    return a.losses == b.losses && a.norms == b.norms && a.state == b.state;
  }
};

Trace train(const std::vector<std::string>& settings, const std::vector<std::string>& more,
            std::int64_t steps) {
  const auto configuration = resolve(settings, more);
  const auto trainer = model::make_trainer(configuration);
  Trace trace;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch batch = random_batch(configuration, step);
    trainer->set_batch(batch.ids, batch.labels);
    const auto result = trainer->step(0.01 / (1.0 + 0.05 * static_cast<double>(step)));
    trace.losses.push_back(result.loss);
    trace.norms.push_back(result.gradient_norm);
    trace.last = result.report;
  }
  CHECK(trainer->refusal().empty());
  trace.state = state_of(*trainer);
  return trace;
}

const std::vector<std::vector<std::string>> policies{
    {"graph.impl=layer"},
    {"graph.impl=layer", "graph.modules=attn"},
    {"graph.impl=layer", "graph.modules=attn,mlp", "graph.optimizer=eager"},
    {"graph.impl=full_iteration", "graph.optimizer=separate"},
    {"graph.impl=full_iteration", "graph.optimizer=joined"},
    {"graph.impl=full_iteration", "graph.optimizer=eager", "graph.warmup_steps=0"}};

void check_all_policies(std::vector<std::string> settings, std::int64_t steps) {
  for (const std::string& backend : backend_names()) {
    CAPTURE(backend);
    settings.push_back("backend=" + backend);
    const Trace eager = train(settings, {"graph.impl=none"}, steps);
    CHECK(std::isfinite(eager.losses.back()));
    CHECK(eager.last.mode == graph::StepMode::eager);
    CHECK(eager.state.random[0].offset == static_cast<std::uint64_t>(steps));
    for (const auto& policy : policies) {
      CAPTURE(policy[0] + " " + policy.back());
      const Trace captured = train(settings, policy, steps);
      CHECK(captured == eager);
      CHECK(captured.last.mode == graph::StepMode::replay);
      CHECK(captured.last.host_syncs == 0);
      CHECK(captured.last.host_copies == 0);
      CHECK(captured.last.fallbacks == 0);
      CHECK(captured.last.graph_nodes > 0);
    }
  }
}

TEST_CASE("eager, layer and full iteration agree bit for bit over 100 steps of GPT-2 with dropout") {
  check_all_policies(
      [] {
        auto settings = tiny_model("gpt2");
        settings.push_back("model.dropout=0.1");
        settings.push_back("model.attention_dropout=0.1");
        return settings;
      }(),
      100);
}

TEST_CASE(
    "eager, layer and full iteration agree bit for bit over 100 steps of Llama with dropout and "
    "microbatches") {
  check_all_policies(
      [] {
        auto settings = tiny_model("llama");
        settings.push_back("model.dropout=0.1");
        settings.push_back("train.microbatches=3");
        return settings;
      }(),
      100);
}

TEST_CASE("eager, layer and full iteration agree bit for bit in bf16 with master weights and bf16 moments") {
  check_all_policies(
      [] {
        auto settings = tiny_model("llama");
        for (const char* setting :
             {"model.dropout=0.1", "train.precision=bf16", "train.gradient_type=fp32",
              "train.optimizer_state=bf16", "train.master_weights=true", "train.microbatches=2"})
          settings.emplace_back(setting);
        return settings;
      }(),
      30);
}

TEST_CASE("dropout draws other masks in every replay") {
  for (const std::string& backend : backend_names()) {
    auto settings = tiny_model("gpt2");
    for (const std::string& setting :
         {std::string("model.dropout=0.5"), std::string("graph.warmup_steps=0"), "backend=" + backend})
      settings.push_back(setting);
    const auto configuration = resolve(settings);
    const auto trainer = model::make_trainer(configuration);
    const Batch batch = random_batch(configuration, 0);
    std::vector<double> losses;
    for (int step = 0; step < 4; ++step) {
      trainer->set_batch(batch.ids, batch.labels);
      losses.push_back(trainer->step(0.0).loss);  // the weights stay
    }
    CHECK(losses[1] != losses[0]);
    CHECK(losses[2] != losses[1]);
    CHECK(losses[3] != losses[2]);
  }
}

TEST_CASE("the learning rate of each replayed step is that step's own") {
  for (const std::string& backend : backend_names()) {
    auto settings = tiny_model("llama");
    settings.push_back("backend=" + backend);
    settings.push_back("graph.warmup_steps=0");
    const auto configuration = resolve(settings);
    const auto trainer = model::make_trainer(configuration);
    const Batch batch = random_batch(configuration, 0);
    const auto step = [&](double rate) {
      trainer->set_batch(batch.ids, batch.labels);
      const auto before = state_of(*trainer).bytes;
      trainer->step(rate);
      return state_of(*trainer).bytes != before;
    };
    CHECK(step(0.01));
    const auto weights = [&] {
      return trainer->read(model::ParameterArray::weights, trainer->layout().slices().front());
    };
    auto before = weights();
    step(0.0);
    CHECK(weights() == before);
    step(0.01);
    CHECK(weights() != before);
  }
}

TEST_CASE("Serial and OpenMP agree bit for bit") {
  auto settings = tiny_model("llama");
  settings.push_back("model.dropout=0.1");
  const Trace serial = train(settings, {"backend=serial"}, 20);
  const Trace openmp = train(settings, {"backend=openmp"}, 20);
  CHECK(serial == openmp);
}

}  // namespace
