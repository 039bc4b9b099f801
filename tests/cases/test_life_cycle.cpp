// SPDX-License-Identifier: Apache-2.0
// Section E of the public complaints about graph capture, and the silent wrong numbers found by reading.
#include <encore/backend/error.hpp>

#include "trainers.hpp"

#include <doctest/doctest.h>

using namespace encore;
using namespace encore::tests;

namespace {

std::unique_ptr<model::Trainer> make(const std::string& backend, std::vector<std::string> more) {
  more.push_back("backend=" + backend);
  more.push_back("model.dropout=0.1");
  return model::make_trainer(resolve(tiny_model("llama"), more));
}

model::StepResult train(model::Trainer& trainer, std::int64_t step) {
  const Batch batch = random_batch(trainer.configuration(), step);
  trainer.set_batch(batch.ids, batch.labels);
  return trainer.step(0.01);
}

}  // namespace

TEST_CASE(
    "case 30: evaluations have a graph of their own, without dropout, and leave training as if they had not "
    "been") {
  for (const std::string& backend : backend_names())
    for (const char* impl : {"graph.impl=full_iteration", "graph.impl=layer", "graph.impl=none"}) {
      const auto with = make(backend, {impl, "graph.warmup_steps=1"}),
                 without = make(backend, {impl, "graph.warmup_steps=1"});
      const Batch held_out = random_batch(with->configuration(), 99);
      for (std::int64_t step = 0; step < 6; ++step) {
        CHECK(train(*with, step).loss == train(*without, step).loss);
        if (step != 2) continue;
        const double first = with->evaluate(held_out.ids, held_out.labels);
        CHECK(with->evaluate(held_out.ids, held_out.labels) == first);
        const auto logits = with->logits();
        CHECK(with->evaluate(held_out.ids, held_out.labels) == first);
        CHECK(with->logits() == logits);
      }
      CHECK(state_of(*with) == state_of(*without));
      // The same weights give the same loss where nothing is recorded.
      const auto eager = make(backend, {"graph.impl=none"});
      for (std::int64_t step = 0; step < 6; ++step) train(*eager, step);
      CHECK(eager->evaluate(held_out.ids, held_out.labels) == with->evaluate(held_out.ids, held_out.labels));
    }
}

TEST_CASE(
    "case 29: training, two evaluations, dropping all graphs and leaving ends cleanly, and capturing again "
    "after it works") {
  for (const std::string& backend : backend_names()) {
    const auto trainer = make(backend, {"graph.warmup_steps=0"});
    const Batch held_out = random_batch(trainer->configuration(), 99);
    train(*trainer, 0);
    const double loss = trainer->evaluate(held_out.ids, held_out.labels);
    CHECK(trainer->evaluate(held_out.ids, held_out.labels) == loss);
    trainer->reset_graphs();
    CHECK(trainer->evaluate(held_out.ids, held_out.labels) == loss);
    CHECK(train(*trainer, 1).report.mode == graph::StepMode::capture);
    trainer->reset_graphs();
  }
}

TEST_CASE("a result that was kept stays that of its step, also of a step that was left out") {
  for (const std::string& backend : backend_names()) {
    const auto trainer = make(backend, {"graph.warmup_steps=0"});
    std::vector<model::StepResult> kept;
    for (std::int64_t step = 0; step < 5; ++step) kept.push_back(train(*trainer, step));
    const auto again = make(backend, {"graph.impl=none"});
    for (std::int64_t step = 0; step < 5; ++step) {
      const auto result = train(*again, step);
      CHECK(kept[static_cast<std::size_t>(step)].loss == result.loss);
      CHECK(kept[static_cast<std::size_t>(step)].step == step + 1);
      CHECK_FALSE(kept[static_cast<std::size_t>(step)].skipped);
    }
    trainer->set_scalar("skip_above", 1e-12);
    CHECK(train(*trainer, 5).skipped);
    trainer->set_scalar("skip_above", 1e12);
    CHECK_FALSE(train(*trainer, 6).skipped);
  }
}
