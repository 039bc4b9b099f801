// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/launch.hpp>
#include <encore/graph/executor.hpp>
#include <encore/graph/scalars.hpp>

#include "spaces.hpp"

using namespace encore;
using namespace encore::graph;
using encore::tests::TestArray;

namespace {

struct AddScalar {
  double* data;
  const double* scalar;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] = 2 * data[i] + *scalar; }
};

/// state = 2 * state + rate, in two segments of layer 0 and one of no layer.
template <class Space>
struct Counter {
  backend::Device<Space> device{1};
  Scalars<Space> scalars{device.stream(), {"rate"}};
  TestArray<Space, double> state{device.stream(), std::vector<double>(10, 1.0)};
  Program<Space> program;
  BufferId state_id, rate_id;

  explicit Counter(bool copies_to_host = false) {
    state_id = program.add_buffer({"state", backend::DataType::float64, {10}, BufferKind::state});
    rate_id = program.add_buffer({"rate", backend::DataType::float64, {1}, BufferKind::scalar});
    const auto body = [s = state_id, r = rate_id](Execution<Space>& x) {
      auto* data = x.template pointer<double>(s);
      backend::launch(x.stream(), "test::add_scalar", {backend::write(data, 10)}, backend::Range{10},
                      AddScalar{data, x.template pointer<const double>(r)});
    };
    program.add_segment({"layer.0/attn/forward", Module::attn, Phase::forward, 0, 0, {rate_id}, {state_id}},
                        body);
    program.add_segment({"head/forward", Module::head, Phase::forward, -1, 0, {rate_id}, {state_id}}, body);
    program.add_segment({"layer.0/mlp/forward", Module::mlp, Phase::forward, 0, 0, {rate_id}, {state_id}},
                        [body, copies_to_host, s = state_id](Execution<Space>& x) {
                          body(x);
                          double host = 0;
                          if (copies_to_host)
                            x.stream().copy_to_host(&host, x.template pointer<double>(s), 8, "norm");
                        });
  }

  Bindings bindings() {
    Bindings result(program.outline());
    result.bind(state_id, reinterpret_cast<std::byte*>(state.data()));
    result.bind(rate_id, scalars.device_data());
    return result;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("eager, layer and full-iteration steps give the same state", Space, ENCORE_TEST_SPACES) {
  std::vector<std::vector<double>> states;
  for (const CaptureScope scope : {CaptureScope::none, CaptureScope::layer, CaptureScope::full_iteration}) {
    Counter<Space> counter;
    Executor<Space> executor(counter.device, counter.program, counter.bindings(),
                             {scope, {}, OptimizerCapture::separate, 2});
    for (int step = 0; step < 8; ++step) {
      counter.scalars.set("rate", 0.25 * step);
      counter.scalars.upload(counter.device.stream());
      const StepReport report = executor.step();
      const StepMode expected = scope == CaptureScope::none || step < 2 ? StepMode::eager
                                : step == 2                             ? StepMode::capture
                                                                        : StepMode::replay;
      CHECK(report.mode == expected);
      CHECK(report.host_syncs == 0);
      CHECK(report.host_copies == 0);
      CHECK(report.fallbacks == 0);
      const std::size_t nodes = scope == CaptureScope::layer ? 2 : 3;
      CHECK(report.graph_nodes == (expected == StepMode::eager ? 0 : nodes));
    }
    states.push_back(counter.state.get());
  }
  CHECK(states[0] == states[1]);
  CHECK(states[0] == states[2]);
}

TEST_CASE_TEMPLATE("a refused capture names segment and cause, changes nothing, and training goes on eagerly",
                   Space, ENCORE_TEST_SPACES) {
  Counter<Space> refused(true), eager(true);
  Executor<Space> executor(refused.device, refused.program, refused.bindings(),
                           {CaptureScope::full_iteration, {}, OptimizerCapture::separate, 1});
  Executor<Space> reference(eager.device, eager.program, eager.bindings(), {});
  for (int step = 0; step < 4; ++step) {
    const StepReport report = executor.step();
    reference.step();
    CHECK(report.mode == StepMode::eager);
    CHECK(report.fallbacks == (step >= 1 ? 1 : 0));
    CHECK(refused.state.get() == eager.state.get());
  }
  CHECK(executor.refusal().find("layer.0/mlp/forward") != std::string::npos);
  CHECK(executor.refusal().find("host copy 'norm'") != std::string::npos);
  CHECK(executor.graphs() == 0);
}

TEST_CASE_TEMPLATE("capturing without warm-up works", Space, ENCORE_TEST_SPACES) {
  Counter<Space> counter;
  Executor<Space> executor(counter.device, counter.program, counter.bindings(),
                           {CaptureScope::full_iteration, {}, OptimizerCapture::separate, 0});
  CHECK(executor.step().mode == StepMode::capture);
  CHECK(counter.state.get()[0] == 8.0);
}

TEST_CASE_TEMPLATE("graphs that were prepared ahead wait for the end of the warm-up, and replay() does not",
                   Space, ENCORE_TEST_SPACES) {
  Counter<Space> counter;
  Executor<Space> executor(counter.device, counter.program, counter.bindings(),
                           {CaptureScope::full_iteration, {}, OptimizerCapture::separate, 2});
  CHECK(executor.prepare() == 1);
  StepReport report = executor.step();
  CHECK(report.mode == StepMode::eager);
  CHECK(report.graph_nodes == 0);
  CHECK(report.eager_launches == 3);
  report = executor.replay();
  CHECK(report.mode == StepMode::replay);
  CHECK(report.graph_nodes == 3);
  CHECK(report.eager_launches == 0);
  executor.reset();
  executor.end_warmup();
  CHECK(executor.step().mode == StepMode::capture);
  CHECK(counter.state.get()[0] == 512.0);
}

TEST_CASE_TEMPLATE("after a reset the graphs are recorded anew", Space, ENCORE_TEST_SPACES) {
  Counter<Space> counter;
  Executor<Space> executor(counter.device, counter.program, counter.bindings(),
                           {CaptureScope::layer, {}, OptimizerCapture::separate, 0});
  executor.step();
  CHECK(executor.graphs() == 2);
  executor.reset();
  CHECK(executor.graphs() == 0);
  CHECK(executor.step().mode == StepMode::capture);
  CHECK(counter.state.get()[0] == 64.0);
}

TEST_CASE_TEMPLATE("a body that touches what it did not declare is refused by name", Space,
                   ENCORE_TEST_SPACES) {
  Counter<Space> counter;
  const auto secret =
      counter.program.add_buffer({"secret", backend::DataType::float64, {1}, BufferKind::state});
  counter.program.add_segment({"thief", Module::mlp, Phase::forward, -1, -1, {}, {}},
                              [=](Execution<Space>& x) { x.template pointer<const double>(secret); });
  Executor<Space> executor(counter.device, counter.program, counter.bindings(), {});
  CHECK_THROWS_WITH_AS(executor.step(), "segment 'thief' reads buffer 'secret' without having declared it",
                       InternalError);
}

TEST_CASE_TEMPLATE("a body that takes a buffer as another type is refused by name", Space,
                   ENCORE_TEST_SPACES) {
  Counter<Space> counter;
  counter.program.add_segment(
      {"caster", Module::mlp, Phase::forward, -1, -1, {counter.state_id}, {}},
      [s = counter.state_id](Execution<Space>& x) { x.template pointer<const float>(s); });
  Executor<Space> executor(counter.device, counter.program, counter.bindings(), {});
  CHECK_THROWS_WITH_AS(executor.step(), "segment 'caster' takes buffer 'state' of type float64 as float32",
                       InternalError);
}

TEST_CASE_TEMPLATE("a scalar that does not exist is refused with the known ones", Space, ENCORE_TEST_SPACES) {
  Counter<Space> counter;
  CHECK_THROWS_WITH_AS(counter.scalars.set("learning_rat", 1),
                       "R-04: no scalar is called 'learning_rat'; there are rate", ReplayContractError);
}

TEST_CASE_TEMPLATE("many uploads in a row each take effect", Space, ENCORE_TEST_SPACES) {
  Counter<Space> counter;
  Executor<Space> executor(counter.device, counter.program, counter.bindings(), {});
  double expected = 1.0;
  for (int step = 0; step < 50; ++step) {
    counter.scalars.set("rate", step);
    counter.scalars.upload(counter.device.stream());
    executor.step();
    for (int segment = 0; segment < 3; ++segment) expected = 2 * expected + step;
  }
  CHECK(counter.state.get()[0] == expected);
}

TEST_CASE("the signature of a program changes with whatever a recording depends on") {
  const auto outline_of = [](const char* name, std::vector<std::int64_t> shape, backend::DataType type) {
    Outline outline;
    const auto id = outline.add_buffer({name, type, std::move(shape)});
    outline.add_segment({"s", Module::mlp, Phase::forward, -1, -1, {}, {id}});
    return outline;
  };
  const auto reference = outline_of("a", {2, 3}, backend::DataType::float32).signature();
  CHECK(outline_of("a", {2, 3}, backend::DataType::float32).signature() == reference);
  CHECK(outline_of("b", {2, 3}, backend::DataType::float32).signature() != reference);
  CHECK(outline_of("a", {3, 2}, backend::DataType::float32).signature() != reference);
  CHECK(outline_of("a", {2, 3}, backend::DataType::bfloat16).signature() != reference);
}
