// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/snapshot.hpp>

#include "chain_program.hpp"

using namespace encore;
using namespace encore::graph;
using encore::tests::ChainProgram;

namespace {

const CapturePolicy whole{CaptureScope::full_iteration, {}, OptimizerCapture::separate, 0};

struct Add {
  double* sum;
  double value;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { sum[i] += value; }
};

/// Adds a segment with the fault that replays are checked for: what it adds was decided when it was recorded.
template <class Space>
void add_frozen_segment(ChainProgram<Space>& chain, int& step) {
  chain.program.add_segment(
      {"layer.9/frozen/forward", Module::mlp, Phase::forward, 9, -1, {chain.total}, {chain.total}},
      [&step, id = chain.total](Execution<Space>& x) {
        auto* sum = x.template pointer<double>(id);
        backend::launch(x.stream(), "test::add", {backend::write(sum, 37)}, backend::Range{37},
                        Add{sum, static_cast<double>(step)});
      });
}

}  // namespace

TEST_CASE_TEMPLATE("a step taken back and run again gives the same snapshot, random positions included",
                   Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 3);
  chain.program.add_segment({"advance", Module::random, Phase::update, -1, -1, {}, {}},
                            [](Execution<Space>& x) { x.device().random().advance(x.stream()); });
  Executor<Space> executor(device, chain.program, chain.bindings(), whole);
  const auto take = [&] {
    return Snapshot::take(device, chain.program.outline(), chain.plan, executor.bindings());
  };
  executor.step();
  const Snapshot before = take();
  executor.step();
  const Snapshot replay = take();
  CHECK_FALSE(first_difference(chain.program.outline(), before, replay).empty());
  before.restore(device, chain.program.outline(), executor.bindings());
  CHECK(first_difference(chain.program.outline(), before, take()).empty());
  executor.step_eagerly();
  CHECK(first_difference(chain.program.outline(), replay, take()).empty());
  CHECK(replay.random()[0].offset == 2);
}

TEST_CASE_TEMPLATE("state that a recording froze is found, by the name of the first buffer that shows it",
                   Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 3);
  int step = 0;
  add_frozen_segment(chain, step);
  Executor<Space> executor(device, chain.program, chain.bindings(), whole);
  const auto take = [&] {
    return Snapshot::take(device, chain.program.outline(), chain.plan, executor.bindings());
  };
  executor.step();
  const Snapshot before = take();
  step = 1;
  executor.step();
  const Snapshot replay = take();
  before.restore(device, chain.program.outline(), executor.bindings());
  executor.step_eagerly();
  CHECK(first_difference(chain.program.outline(), replay, take()) ==
        "37 of 37 elements of 'total' differ, the first at 0");
}

TEST_CASE("activations that are still whole at the end of a step are found, and no others") {
  Outline outline;
  const auto add = [&](const char* name, std::int64_t bytes) {
    return outline.add_buffer({name, backend::DataType::uint8, {bytes}});
  };
  const auto first = add("first", 256), second = add("second", 256), third = add("third", 256),
             unread = add("unread", 256);
  outline.add_segment({"1", Module::mlp, Phase::forward, -1, -1, {}, {first}});
  outline.add_segment({"2", Module::mlp, Phase::forward, -1, -1, {first}, {second}});
  outline.add_segment({"3", Module::mlp, Phase::forward, -1, -1, {second}, {third}});
  outline.add_segment({"4", Module::mlp, Phase::forward, -1, -1, {third}, {unread}});
  const MemoryPlan plan = plan_memory(outline);
  const auto left = activations_left(outline, plan);
  CHECK(plan.arena_bytes == 512);
  CHECK(left == std::vector{third});
}
