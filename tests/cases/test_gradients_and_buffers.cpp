// SPDX-License-Identifier: Apache-2.0
// Section A of the public complaints about graph capture: gradients and buffers.
#include <encore/backend/error.hpp>
#include <encore/graph/executor.hpp>

#include "chain_program.hpp"
#include "model_on_device.hpp"

#include <malloc.h>

using namespace encore;
using namespace encore::tests;
using encore::graph::BufferId;
using encore::graph::BufferKind;
using encore::graph::CapturePolicy;
using encore::graph::CaptureScope;
using encore::graph::Executor;
using encore::graph::OptimizerCapture;

namespace {

const CapturePolicy whole{CaptureScope::full_iteration, {}, OptimizerCapture::joined, 0};
const CapturePolicy layers{CaptureScope::layer, {}, OptimizerCapture::separate, 0};

model::Configuration tiny(const std::vector<std::string>& more = {}) {
  auto settings = tiny_model("llama");
  settings.push_back("model.dropout=0.1");
  return resolve(settings, more);
}

/// A program with an eager segment after each of its own that overwrites every byte of the arena that no later
/// segment should need.
template <class Space>
graph::Program<Space> with_poison(const ModelOnDevice<Space>& model) {
  const graph::Outline& outline = model.outline();
  graph::Program<Space> result;
  for (const graph::Buffer& buffer : outline.buffers()) result.add_buffer(buffer);
  for (std::size_t i = 0; i < outline.segments().size(); ++i) {
    const graph::Segment& segment = outline.segments()[i];
    result.add_segment(segment, model.step.program.body(i));
    graph::Segment poison{segment.name + "/poison", segment.module, segment.phase, -1, -1, {}, {}};
    poison.eager_because = "stands between the graphs";
    std::vector<bool> free(model.plan.arena_bytes, true);
    for (const graph::PlannedActivation& activation : model.plan.activations)
      if (activation.first_segment <= i && i < activation.last_segment)
        std::fill_n(free.begin() + static_cast<std::ptrdiff_t>(activation.offset), activation.bytes, false);
    std::byte* const arena = model.arena.data();
    result.add_segment(poison, [free, arena](graph::Execution<Space>& x) {
      std::vector<std::byte> noise(free.size());
      std::byte* host = noise.data();
      x.stream().copy_to_host(host, arena, free.size(), "poison");
      x.stream().synchronize("poison");
      for (std::size_t at = 0; at < free.size(); ++at)
        if (free[at]) host[at] = std::byte{0xff};  // NaN in every type
      x.stream().copy_to_device(arena, host, free.size(), "poison");
      x.stream().synchronize("poison");
    });
  }
  return result;
}

}  // namespace

TEST_CASE(
    "case 1: gradients of microbatches add up in the graph, and gradients that were handed out stay as they "
    "are") {
  for (const std::string& backend : backend_names())
    for (const char* impl : {"full_iteration", "layer"}) {
      const auto configuration = tiny({"train.microbatches=2", "graph.warmup_steps=0", "backend=" + backend,
                                       std::string("graph.impl=") + impl});
      const auto trainer = model::make_trainer(configuration), eager = model::make_trainer(configuration);
      const auto slice = trainer->layout().slices().front();
      std::vector<std::byte> handed_out, copy;
      for (std::int64_t step = 0; step < 4; ++step) {
        const Batch batch = random_batch(configuration, step);
        trainer->set_batch(batch.ids, batch.labels);
        eager->set_batch(batch.ids, batch.labels);
        trainer->step(0.01);
        eager->step_eagerly(0.01);
        for (const auto& each : trainer->layout().slices())
          CHECK(trainer->read(model::ParameterArray::gradients, each) ==
                eager->read(model::ParameterArray::gradients, each));
        if (step == 1) {
          handed_out = trainer->read(model::ParameterArray::gradients, slice);
          copy = handed_out;
        }
      }
      CHECK(handed_out == copy);
      CHECK(trainer->read(model::ParameterArray::gradients, slice) != copy);
    }
}

TEST_CASE_TEMPLATE("case 1: a copy of a buffer on the device outlives the replays that overwrite the buffer",
                   Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 2);
  Executor<Space> executor(device, chain.program, chain.bindings(), whole);
  executor.step();
  const backend::Allocation<Space> held = executor.copy(chain.output);
  chain.set_rate(100.0);
  executor.step();
  std::vector<double> values(37);
  device.stream().copy_to_host(values.data(), held.data(), held.bytes(), "test");
  device.stream().synchronize("test");
  CHECK(values == std::vector<double>(37, 4.0));
  CHECK(chain.output_values() != values);
}

TEST_CASE_TEMPLATE(
    "case 2: what the backward pass reads survives a pool whose other bytes are overwritten between any two "
    "graphs",
    Space, ENCORE_TEST_SPACES) {
  const auto configuration = tiny({"model.layers=3", "train.microbatches=2"});
  ModelOnDevice<Space> model(configuration), eager(configuration);
  const graph::Program<Space> poisoned = with_poison(model);
  Executor<Space> executor(model.device, poisoned, model.bindings(poisoned.outline()), layers);
  Executor<Space> reference(eager.device, eager.step.program, eager.bindings(), {});
  for (std::int64_t step = 1; step <= 3; ++step) {
    model.set_step(step, 0.01);
    eager.set_step(step, 0.01);
    const auto report = executor.step();
    CHECK(report.graph_nodes > 0);
    reference.step();
    CHECK(model.state() == eager.state());
  }
}

TEST_CASE_TEMPLATE("case 3: gradients and all else that was there before a capture is there after it", Space,
                   ENCORE_TEST_SPACES) {
  ModelOnDevice<Space> model(tiny({"train.microbatches=2"}));
  model.set_step(1, 0.01);
  std::vector<std::byte> known(model.memory(*model.step.gradients).bytes());
  for (std::size_t i = 0; i < known.size(); ++i) known[i] = static_cast<std::byte>(i * 7);
  model.write(*model.step.gradients, known);
  const auto before = model.state();
  const auto random_before = model.device.random().snapshot(model.device.stream());
  for (const CapturePolicy& policy : {whole, layers}) {
    Executor<Space> executor(model.device, model.step.program, model.bindings(), policy);
    CHECK(executor.prepare() > 0);
    CHECK(executor.prepare() == 0);
    CHECK(executor.refusal().empty());
    CHECK(model.state() == before);
    CHECK(model.read(*model.step.gradients) == known);
    CHECK(model.device.random().snapshot(model.device.stream())[0].offset == random_before[0].offset);
  }
}

namespace {

/// gradient = weight * factor, so that each parameter's gradient tells which one it is.
struct Scale {
  double* result;
  const double* source;
  double factor;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { result[i] = factor * source[i]; }
};

}  // namespace

TEST_CASE_TEMPLATE(
    "case 5: gradients belong to their parameters by identity, whatever the order of registration and use",
    Space, ENCORE_TEST_SPACES) {
  std::vector<std::vector<std::vector<double>>> results;
  for (const CapturePolicy& policy : {CapturePolicy{}, whole, layers}) {
    backend::Device<Space> device(1);
    graph::Program<Space> program;
    const std::vector<std::string> registered{"b", "c", "a"}, used{"a", "b", "c"};
    std::map<std::string, BufferId> weights, gradients;
    for (const auto& name : registered)
      weights[name] = program.add_buffer({name, backend::DataType::float64, {8}, BufferKind::parameter});
    for (const std::string name : {"c", "a", "b"})
      gradients[name] =
          program.add_buffer({name + ".gradient", backend::DataType::float64, {8}, BufferKind::gradient});
    double factor = 1;
    for (const auto& name : used) {
      factor *= 10;
      const BufferId from = weights[name], to = gradients[name];
      program.add_segment(
          {name + "/backward", graph::Module::mlp, graph::Phase::backward, 0, 0, {from}, {to}},
          [=](graph::Execution<Space>& x) {
            const auto* source = x.template pointer<const double>(from);
            auto* result = x.template pointer<double>(to);
            backend::launch(x.stream(), "test::scale", {backend::read(source, 8), backend::write(result, 8)},
                            backend::Range{8}, Scale{result, source, factor});
          });
    }
    std::vector<TestArray<Space, double>> arrays;
    arrays.reserve(6);
    graph::Bindings bindings(program.outline());
    const auto bind = [&](BufferId id, double value) {
      arrays.emplace_back(device.stream(), std::vector<double>(8, value));
      bindings.bind(id, reinterpret_cast<std::byte*>(arrays.back().data()));
    };
    for (const auto& name : used) bind(weights[name], name[0]);
    for (const auto& name : used) bind(gradients[name], -1);
    Executor<Space> executor(device, program, bindings, policy);
    executor.step();
    executor.step();
    results.emplace_back();
    for (std::size_t i = 3; i < 6; ++i) results.back().push_back(arrays[i].get());
    CHECK(results.back()[0][0] == 10.0 * 'a');
    CHECK(results.back()[1][0] == 100.0 * 'b');
    CHECK(results.back()[2][0] == 1000.0 * 'c');
  }
}

TEST_CASE_TEMPLATE(
    "case 6: the optimizer reads the gradients that the backward pass writes, also after reset and recapture",
    Space, ENCORE_TEST_SPACES) {
  const auto configuration = tiny();
  ModelOnDevice<Space> model(configuration), eager(configuration);
  Executor<Space> executor(model.device, model.step.program, model.bindings(), whole);
  Executor<Space> reference(eager.device, eager.step.program, eager.bindings(), {});
  const std::byte* const address = executor.alias(*model.step.gradients);
  auto weights = model.read(model.step.parameters);
  for (std::int64_t step = 1; step <= 6; ++step) {
    if (step == 3) executor.reset();
    if (step == 5) executor.recapture();
    model.set_step(step, 0.01);
    eager.set_step(step, 0.01);
    executor.step();
    reference.step();
    CHECK(executor.alias(*model.step.gradients) == address);
    CHECK(model.read(model.step.parameters) != weights);
    weights = model.read(model.step.parameters);
    CHECK(model.state() == eager.state());
  }
}

namespace {

/// A driver gives memory in blocks of 2 MiB; a host's allocator is exact but for what doctest keeps.
template <class Space>
constexpr std::size_t allowance = backend::is_host_space<Space> ? 16 << 10 : 4 << 20;

template <class Space>
std::size_t used_memory() {
  if constexpr (backend::is_host_space<Space>) {
    return mallinfo2().uordblks;
  } else {
    return (std::size_t{1} << 60) - backend::available_memory<Space>();
  }
}

}  // namespace

TEST_CASE_TEMPLATE("case 8: a reset gives back the graphs' memory each time, and a replay after it says so",
                   Space, ENCORE_TEST_SPACES) {
  ModelOnDevice<Space> model(tiny());
  model.set_step(1, 0.01);
  Executor<Space> executor(model.device, model.step.program, model.bindings(), layers);
  CHECK_THROWS_WITH_AS(executor.replay(), "R-05: no graph has been recorded yet; step() records them",
                       ReplayContractError);
  executor.step();
  executor.reset();
  executor.step();
  executor.reset();
  const std::size_t baseline = used_memory<Space>();
  for (int round = 0; round < 20; ++round) {
    executor.step();
    CHECK(executor.graphs() > 0);
    executor.replay();
    executor.reset();
    CHECK(executor.graphs() == 0);
    CHECK_THROWS_WITH_AS(executor.replay(), "R-05: the graphs were reset; step() records them",
                         ReplayContractError);
    CHECK(used_memory<Space>() <= baseline + allowance<Space>);
  }
}
