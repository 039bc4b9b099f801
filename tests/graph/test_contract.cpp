// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/contract_rules.hpp>

#include <fmt/format.h>

#include "chain_program.hpp"

using namespace encore;
using namespace encore::graph;
using encore::tests::ChainProgram;
using encore::tests::TestArray;

namespace {

const CapturePolicy whole{CaptureScope::full_iteration, {}, OptimizerCapture::separate, 0};
const CapturePolicy layers{CaptureScope::layer, {}, OptimizerCapture::separate, 0};

CapturePolicy recapturing(CapturePolicy policy) {
  policy.recapture = true;
  return policy;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const ReplayContractError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE_TEMPLATE("a replay with moved buffers is refused with all of them, before anything has run", Space,
                   ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 3);
  Executor<Space> executor(device, chain.program, chain.bindings(), whole);
  executor.step();
  const auto before = chain.total_values();
  TestArray<Space, double> other(device.stream(), std::vector<double>(37, 5.0));
  auto* address = reinterpret_cast<std::byte*>(other.data());
  executor.rebind(chain.input, address);
  executor.rebind(chain.output, address);
  const std::string sentence = error_of([&] { executor.step(); });
  CHECK(contains(sentence, "R-01: buffer 'input' lies at another address"));
  CHECK(contains(sentence, "R-01: buffer 'output' lies at another address"));
  CHECK_FALSE(contains(sentence, "'total'"));
  CHECK(chain.total_values() == before);
  CHECK(other.get() == std::vector<double>(37, 5.0));
  const Bindings original = chain.bindings();
  executor.rebind(chain.input, original.address(chain.input));
  executor.rebind(chain.output, original.address(chain.output));
  CHECK(executor.step().mode == StepMode::replay);
}

TEST_CASE_TEMPLATE("with recapture a moved buffer makes the runs that use it be recorded anew, and no others",
                   Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 4);
  Executor<Space> executor(device, chain.program, chain.bindings(), recapturing(layers));
  CHECK(executor.step().captures == 4);
  CHECK(executor.step().captures == 0);
  TestArray<Space, double> other(device.stream(), std::vector<double>(37, 5.0));
  executor.rebind(chain.input, reinterpret_cast<std::byte*>(other.data()));
  const StepReport report = executor.step();
  CHECK(report.mode == StepMode::capture);
  CHECK(report.captures == 1);
  CHECK(chain.output_values()[0] == ChainProgram<Space>::expected_output(5.0, 0.0, 4));
  CHECK(executor.step().mode == StepMode::replay);
}

TEST_CASE_TEMPLATE("one run can be recorded anew by its name", Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 3);
  Executor<Space> executor(device, chain.program, chain.bindings(), layers);
  executor.step();
  executor.recapture("layer.1/forward");
  CHECK(executor.graphs() == 2);
  CHECK_THROWS_AS(executor.replay(), ReplayContractError);
  CHECK(executor.step().captures == 1);
  CHECK_THROWS_WITH_AS(executor.recapture("layer.9/forward"),
                       "no captured run is called 'layer.9/forward': runs() lists them", ConfigurationError);
  executor.recapture();
  CHECK(executor.step().captures == 3);
}

TEST_CASE_TEMPLATE(
    "a program that grew after its capture is refused by the names of what is new, or recorded anew", Space,
    ENCORE_TEST_SPACES) {
  for (const bool recaptures : {false, true}) {
    backend::Device<Space> device(1);
    ChainProgram<Space> chain(device, 2);
    Executor<Space> executor(device, chain.program, chain.bindings(),
                             recaptures ? recapturing(whole) : whole);
    executor.step();
    chain.add_segment("layer.2/mlp/forward", 2, chain.output, chain.output);
    if (recaptures) {
      CHECK(executor.step().mode == StepMode::capture);
      CHECK(chain.output_values()[0] == 2 * ChainProgram<Space>::expected_output(1.0, 0.0, 2));
    } else {
      CHECK(contains(error_of([&] { executor.step(); }), "R-03: segment 'layer.2/mlp/forward' was added"));
      CHECK(executor.step_eagerly().mode == StepMode::eager);
      CHECK(chain.output_values()[0] == 2 * ChainProgram<Space>::expected_output(1.0, 0.0, 2));
    }
  }
}

TEST_CASE_TEMPLATE(
    "what is bound to a buffer must have its type and its shape, not one that could be converted", Space,
    ENCORE_TEST_SPACES) {
  Outline outline;
  const auto id = outline.add_buffer({"weights", backend::DataType::float32, {2, 3}, BufferKind::parameter});
  Bindings bindings(outline);
  using Memory = typename Space::memory_space;
  const Kokkos::View<float**, Kokkos::LayoutRight, Memory> good("good", 2, 3), row("row", 1, 3);
  const Kokkos::View<double**, Kokkos::LayoutRight, Memory> doubles("doubles", 2, 3);
  const Kokkos::View<float*, Memory> flat("flat", 6);
  CHECK_NOTHROW(bindings.bind_view(outline, id, good));
  CHECK(contains(error_of([&] { bindings.bind_view(outline, id, row); }),
                 "R-01: buffer 'weights': its shape is [2, 3] and [1, 3] was given"));
  CHECK(contains(error_of([&] { bindings.bind_view(outline, id, flat); }), "[6] was given"));
  CHECK(contains(error_of([&] { bindings.bind_view(outline, id, doubles); }),
                 "its type is float32 and float64 was given"));
  CHECK(bindings.address(id) == reinterpret_cast<std::byte*>(good.data()));
}

TEST_CASE_TEMPLATE("a segment that says why it must be eager splits the iteration around it", Space,
                   ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 2);
  double seen = 0;
  Segment segment{"report", Module::head, Phase::forward, -1, -1, {chain.output}, {}};
  segment.eager_because = "waits for the host";
  chain.program.add_segment(segment, [&seen, id = chain.output](Execution<Space>& x) {
    x.stream().copy_to_host(&seen, x.template pointer<const double>(id), sizeof seen, "report");
    x.stream().synchronize("report");
  });
  chain.add_segment("layer.2/mlp/forward", 2, chain.output, chain.output);
  Executor<Space> executor(device, chain.program, chain.bindings(), whole);
  for (int step = 0; step < 3; ++step) {
    const StepReport report = executor.step();
    CHECK(report.fallbacks == 0);
    CHECK(seen == 4.0);
    CHECK(chain.output_values()[0] == 8.0);
  }
  CHECK(executor.refusal().empty());
  CHECK(executor.graphs() == 2);
}

TEST_CASE_TEMPLATE("a scalar that is part of the recording is refused with the reason", Space,
                   ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  Scalars<Space> scalars(device.stream(), {"rate"}, {{"epsilon", "it is part of the recorded kernels"}});
  CHECK_THROWS_WITH_AS(scalars.set("epsilon", 1.0),
                       "R-04: 'epsilon' cannot change between steps: it is part of the recorded kernels",
                       ReplayContractError);
}

TEST_CASE("each rule has an id of its own") {
  for (std::size_t i = 0; i < std::size(contract_rules); ++i)
    CHECK(contract_rules[i].id == fmt::format("R-{:02}", i + 1));
}
