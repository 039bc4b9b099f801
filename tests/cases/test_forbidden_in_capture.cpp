// SPDX-License-Identifier: Apache-2.0
// Section C of the public complaints about graph capture: what may not happen while recording.
#include <encore/backend/error.hpp>
#include <encore/backend/event.hpp>
#include <encore/graph/executor.hpp>

#include "chain_program.hpp"
#include "model_on_device.hpp"

#include <functional>

using namespace encore;
using namespace encore::tests;
using encore::graph::BufferId;
using encore::graph::CapturePolicy;
using encore::graph::CaptureScope;
using encore::graph::Execution;
using encore::graph::Executor;
using encore::graph::OptimizerCapture;

namespace {

const CapturePolicy whole{CaptureScope::full_iteration, {}, OptimizerCapture::joined, 0};
const CapturePolicy layers{CaptureScope::layer, {}, OptimizerCapture::separate, 0};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// What a recorded run may not do, and the word that names it.
template <class Space>
struct Misdeed {
  std::string name;
  std::function<void(Execution<Space>&, BufferId)> act;
};

template <class Space>
std::vector<Misdeed<Space>> misdeeds() {
  return {{"host copy",
           [](Execution<Space>& x, BufferId id) {
             double value = 0;
             x.stream().copy_to_host(&value, x.template pointer<const double>(id), sizeof value, "loss");
           }},
          {"host copy",
           [](Execution<Space>& x, BufferId id) {
             const double value = 0;
             x.stream().copy_to_device(x.template pointer<double>(id), &value, sizeof value, "coefficient");
           }},
          {"synchronization", [](Execution<Space>& x, BufferId) { x.stream().synchronize("norm"); }},
          {"event", [](Execution<Space>& x, BufferId) { backend::Event<Space>().record(x.stream()); }}};
}

}  // namespace

TEST_CASE_TEMPLATE(
    "case 16: a host copy, a wait or an event in a layer refuses the capture by layer, scope and operation, "
    "and leaves nothing half captured",
    Space, ENCORE_TEST_SPACES) {
  for (const Misdeed<Space>& misdeed : misdeeds<Space>()) {
    CAPTURE(misdeed.name);
    for (const CapturePolicy& policy : {whole, layers}) {
      backend::Device<Space> device(1);
      ChainProgram<Space> chain(device, 2), never(device, 2);
      chain.program.add_segment({"layer.2/router/forward",
                                 graph::Module::moe_router,
                                 graph::Phase::forward,
                                 2,
                                 0,
                                 {},
                                 {chain.total}},
                                [&misdeed, id = chain.total](Execution<Space>& x) {
                                  if (x.stream().mode() != backend::StreamMode::execute) misdeed.act(x, id);
                                });
      Executor<Space> executor(device, chain.program, chain.bindings(), policy);
      Executor<Space> reference(device, never.program, never.bindings(), {});
      CHECK(executor.prepare() == 0);
      CHECK(executor.graphs() == 0);
      CHECK(contains(executor.refusal(), "layer.2/router/forward"));
      CHECK(contains(executor.refusal(), misdeed.name));
      CHECK(chain.total_values() == never.total_values());
      for (int step = 0; step < 3; ++step) {
        const auto report = executor.step();
        CHECK(report.mode == graph::StepMode::eager);
        CHECK(report.fallbacks > 0);
        reference.step();
        CHECK(chain.total_values() == never.total_values());
      }
      // The stream records again as if nothing had been.
      Executor<Space> another(device, never.program, never.bindings(), policy);
      CHECK(another.step().mode == graph::StepMode::capture);
      CHECK(another.replay().mode == graph::StepMode::replay);
    }
  }
}

TEST_CASE_TEMPLATE(
    "case 16: whatever a layer throws while it is recorded, weights, moments, gradients and random positions "
    "are as before",
    Space, ENCORE_TEST_SPACES) {
  const auto configuration = resolve(tiny_model("llama"), {"model.dropout=0.1", "train.microbatches=2"});
  ModelOnDevice<Space> model(configuration);
  model.set_step(1, 0.01);
  const auto before = model.state();
  model.step.program.add_segment({"callback", graph::Module::head, graph::Phase::update, -1, -1, {}, {}},
                                 [](Execution<Space>& x) {
                                   if (x.stream().mode() == backend::StreamMode::record)
                                     throw std::runtime_error("a callback failed");
                                 });
  Executor<Space> executor(model.device, model.step.program, model.bindings(), whole);
  CHECK_THROWS_WITH_AS(executor.prepare(), "a callback failed", std::runtime_error);
  CHECK(executor.graphs() == 0);
  CHECK(model.device.stream().mode() == backend::StreamMode::execute);
  CHECK(model.state() == before);
  CHECK(model.device.random().snapshot(model.device.stream())[0].offset == 0);
  CHECK_NOTHROW(executor.step_eagerly());
}

TEST_CASE(
    "case 17: a recorded optimizer clips and leaves out steps by the norm as an eager one does, below, at "
    "and above the limit") {
  for (const std::string& backend : backend_names()) {
    const auto make = [&](const char* impl, double limit) {
      return model::make_trainer(
          resolve(tiny_model("llama"),
                  {"backend=" + backend, "graph.warmup_steps=0", "train.clip=0.5",
                   std::string("graph.impl=") + impl, "train.skip_above=" + std::to_string(limit)}));
    };
    const auto train = [](model::Trainer& trainer, std::int64_t step, bool labels) {
      Batch batch = random_batch(trainer.configuration(), step);
      if (!labels) std::ranges::fill(batch.labels, -1);
      trainer.set_batch(batch.ids, batch.labels);
      return trainer.step(0.01);
    };
    const auto probe = make("none", 0);
    std::vector<double> norms;
    for (std::int64_t step = 0; step < 6; ++step) norms.push_back(train(*probe, step, true).gradient_norm);
    const double limit = *std::ranges::max_element(norms);
    for (const double share : {0.2, 1.0, 2.0}) {
      const auto graph = make("full_iteration", 0), eager = make("none", 0);
      for (auto* trainer : {graph.get(), eager.get()}) trainer->set_scalar("skip_above", share * limit);
      bool skipped = false;
      for (std::int64_t step = 0; step < 6; ++step) {
        // The fifth step has no labels, so its gradients are zero.
        const auto before = state_of(*graph).bytes;
        const auto one = train(*graph, step, step != 4), other = train(*eager, step, step != 4);
        CHECK(one.gradient_norm == other.gradient_norm);
        CHECK(one.skipped == other.skipped);
        CHECK((state_of(*graph).bytes == before) == one.skipped);
        CHECK(state_of(*graph) == state_of(*eager));
        skipped = skipped || one.skipped;
      }
      CHECK(skipped == (share < 1));
    }
  }
}

TEST_CASE("case 18: a whole training that records with its first step works in a fresh process") {
  for (const std::string& backend : backend_names()) {
    const auto trainer =
        model::make_trainer(resolve(tiny_model("gpt2"), {"backend=" + backend, "graph.warmup_steps=0"}));
    const Batch batch = random_batch(trainer->configuration(), 0);
    trainer->set_batch(batch.ids, batch.labels);
    CHECK(trainer->step(0.01).report.mode == graph::StepMode::capture);
    CHECK(trainer->refusal().empty());
    trainer->set_batch(batch.ids, batch.labels);
    CHECK(trainer->step(0.01).report.mode == graph::StepMode::replay);
  }
}

TEST_CASE(
    "case 19: an evaluation's graph that is dropped takes nothing along that the training's graph uses") {
  for (const std::string& backend : backend_names()) {
    const auto settings = std::vector<std::string>{"backend=" + backend, "graph.warmup_steps=0"};
    const auto kept = model::make_trainer(resolve(tiny_model("llama"), settings));
    const auto eager =
        model::make_trainer(resolve(tiny_model("llama"), {"backend=" + backend, "graph.impl=none"}));
    const Batch batch = random_batch(kept->configuration(), 0);
    const std::size_t sequences = batch.ids.size();
    const auto train = [&](model::Trainer& trainer) {
      trainer.set_batch(batch.ids, batch.labels);
      return trainer.step(0.01).loss;
    };
    CHECK(train(*kept) == train(*eager));
    {
      // Another model on the same device: its graphs, workspaces and memory go at the end of the block.
      const auto other = model::make_trainer(resolve(tiny_model("llama"), settings));
      train(*other);
      other->evaluate(std::span(batch.ids).first(sequences), std::span(batch.labels).first(sequences));
      other->reset_graphs();
    }
    kept->evaluate(batch.ids, batch.labels);
    const auto noise = model::make_trainer(resolve(tiny_model("gpt2"), settings));  // takes the freed memory
    train(*noise);
    for (int step = 0; step < 3; ++step) CHECK(train(*kept) == train(*eager));
    CHECK(state_of(*kept) == state_of(*eager));
  }
}

TEST_CASE_TEMPLATE(
    "case 19: one of two graphs on one stream can be dropped, and its memory overwritten, while the other "
    "goes on",
    Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> train(device, 3), reference(device, 3);
  Executor<Space> training(device, train.program, train.bindings(), whole);
  Executor<Space> eager(device, reference.program, reference.bindings(), {});
  training.step();
  eager.step();
  {
    ChainProgram<Space> evaluate(device, 5);
    Executor<Space> evaluation(device, evaluate.program, evaluate.bindings(), whole);
    evaluation.step();
    evaluation.step();
    device.stream().synchronize("test");
  }
  TestArray<Space, double> overwritten(device.stream(), std::vector<double>(10000, 1e300));
  training.step();
  eager.step();
  CHECK(train.total_values() == reference.total_values());
}

TEST_CASE_TEMPLATE("case 20: what was made on one stream is recorded on another", Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> made(1), recorded(1);
  ChainProgram<Space> chain(made, 3), reference(made, 3);
  made.stream().synchronize("test");
  Executor<Space> executor(recorded, chain.program, chain.bindings(), whole);
  Executor<Space> eager(made, reference.program, reference.bindings(), {});
  for (int step = 0; step < 3; ++step) {
    executor.step();
    recorded.stream().synchronize("test");
    eager.step();
    made.stream().synchronize("test");
    CHECK(chain.total_values() == reference.total_values());
  }
}

TEST_CASE("several models, of different shapes and policies, train side by side as each would alone") {
  for (const std::string& backend : backend_names()) {
    const std::vector<std::vector<std::string>> kinds{
        {"graph.impl=full_iteration"}, {"graph.impl=layer", "model.layers=3"}, {"graph.impl=none", "seed=9"}};
    std::vector<std::unique_ptr<model::Trainer>> together;
    const auto make = [&](std::vector<std::string> more) {
      more.push_back("backend=" + backend);
      more.push_back("model.dropout=0.1");
      return model::make_trainer(resolve(tiny_model("gpt2"), more));
    };
    const auto train = [](model::Trainer& trainer, std::int64_t step) {
      const Batch batch = random_batch(trainer.configuration(), step);
      trainer.set_batch(batch.ids, batch.labels);
      return trainer.step(0.01).loss;
    };
    for (const auto& kind : kinds) together.push_back(make(kind));
    std::vector<std::vector<double>> losses(kinds.size());
    for (std::int64_t step = 0; step < 8; ++step)
      for (std::size_t i = 0; i < kinds.size(); ++i) losses[i].push_back(train(*together[i], step));
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const auto alone = make(kinds[i]);
      for (std::int64_t step = 0; step < 8; ++step)
        CHECK(train(*alone, step) == losses[i][static_cast<std::size_t>(step)]);
      CHECK(state_of(*alone) == state_of(*together[i]));
    }
  }
}
