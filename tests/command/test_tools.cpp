// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "run_command.hpp"
#include "tiny_model.hpp"
#include "tool_log.hpp"

namespace {

ToolLog watched(const TinyModel& tiny, const std::vector<std::string>& more) {
  const std::string log = tiny.path("tool.log");
  const EnvironmentVariable tool("KOKKOS_TOOLS_LIBS", ENCORE_TEST_KOKKOS_TOOL);
  const EnvironmentVariable file("ENCORE_TEST_TOOL_LOG", log);
  std::vector<std::string> arguments{"--no-verdict", "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = encore(tiny.train(arguments));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  return ToolLog(log);
}

}  // namespace

TEST_CASE("a Kokkos tool sees a region for every operator of an eager step, and its kernels in it") {
  const TinyModel tiny;
  const ToolLog log = watched(tiny, {"--steps", "2", "--set", "graph.impl=none"});
  CHECK(log.balanced);
  CHECK(log.ended);
  CHECK(log.count("encore::step") == 2);
  CHECK(log.count("encore::data") == 2);
  for (const char* const segment :
       {"embedding/forward", "layer.0/attn/forward", "layer.1/attn/forward", "layer.0/mlp/forward",
        "layer.1/mlp/backward", "layer.0/attn/backward", "head/forward", "embedding/backward"})
    CHECK_MESSAGE(log.count("encore::step > encore::" + std::string(segment)) == 2, segment);
  CHECK(log.count_kernels("encore::step > encore::layer.1/attn/forward > encore::attn::output") == 2);
  CHECK(std::ranges::count(log.copies, "batch") == 2);
  CHECK(log.count("encore::step > encore::optimizer/adamw") == 2);
}

TEST_CASE("a Kokkos tool sees what a recording holds when it is made, and one region a replay") {
  const TinyModel tiny;
  for (const std::string policy : {"serial full_iteration", "openmp full_iteration", "serial layer"}) {
    INFO("policy: ", policy);
    const std::size_t space = policy.find(' ');
    const ToolLog log = watched(
        tiny, {"--backend", policy.substr(0, space), "--set", "graph.impl=" + policy.substr(space + 1)});
    CHECK(log.balanced);
    std::vector<std::string> runs;
    const std::string capture = "encore::step > encore::capture::";
    for (const std::string& region : log.regions)
      if (region.starts_with(capture) && region.find('>', capture.size()) == std::string::npos)
        runs.push_back(region.substr(capture.size()));
    REQUIRE(runs.size() >= (policy.ends_with("layer") ? 4 : 1));
    const std::string segment = "encore::layer.1/mlp/backward";
    std::ptrdiff_t recorded = 0;
    for (const std::string& run : runs) {
      const std::string around = capture + run + " > encore::";
      CHECK(log.count(around + "record::" + run) == 1);
      CHECK(log.count(around + "instantiate::" + run) == 1);
      CHECK(log.count("encore::step > encore::replay::" + run) == 5);
      recorded += log.count_kernels(around + "record::" + run + " > " + segment + " > encore::mlp::up_wgrad");
    }
    CHECK(recorded == 1);
    // Three warm-up steps and the recording; none in the replays.
    CHECK(log.count("encore::step > " + segment) == 3);
    CHECK(std::ranges::count_if(log.regions, [&](const std::string& r) { return r.ends_with(segment); }) ==
          4);
  }
}
