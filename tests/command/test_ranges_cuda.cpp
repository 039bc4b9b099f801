// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "run_command.hpp"
#include "tiny_model.hpp"
#include "tool_log.hpp"

TEST_CASE("an NVTX tool sees one domain with ranges of steps, segments, captures and replays") {
  const TinyModel tiny;
  const std::string log = tiny.path("ranges.log");
  {
    const EnvironmentVariable tool("NVTX_INJECTION64_PATH", ENCORE_TEST_NVTX_TOOL);
    const EnvironmentVariable file("ENCORE_TEST_TOOL_LOG", log);
    const Outcome outcome = encore(tiny.train({"--backend", "cuda", "--no-verdict", "--quiet"}));
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  }
  CHECK(lines_of(read_bytes(log)).front() == "domain Encore");
  const ToolLog ranges(log);
  CHECK(ranges.balanced);
  CHECK(ranges.count("step") == 8);
  CHECK(ranges.count("data") == 8);
  CHECK(ranges.count("step > layer.1/attn/forward") == 3);
  CHECK(ranges.count("step > optimizer/adamw") == 3);
  CHECK(ranges.count("step > capture::full_iteration > record::full_iteration > layer.1/attn/forward") == 1);
  CHECK(ranges.count("step > capture::full_iteration > instantiate::full_iteration") == 1);
  CHECK(ranges.count("step > replay::full_iteration") == 5);
}

TEST_CASE("a Kokkos tool that fences before each event does not break a capture on CUDA") {
  const TinyModel tiny;
  const std::string log = tiny.path("tool.log");
  const EnvironmentVariable tool("KOKKOS_TOOLS_LIBS", ENCORE_TEST_KOKKOS_TOOL);
  const EnvironmentVariable file("ENCORE_TEST_TOOL_LOG", log);
  const Outcome outcome =
      encore(tiny.train({"--backend", "cuda", "--no-verdict", "--log", tiny.path("run.jsonl")}));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.output.find("4 of them replayed") != std::string::npos);
  const ToolLog events(log);
  CHECK(events.balanced);
  CHECK(events.count("encore::step > encore::replay::full_iteration") == 5);
  CHECK(events.count_kernels("encore::step > encore::layer.1/attn/forward > encore::attn::output") == 3);
  CHECK(events.count_kernels(
            "encore::step > encore::capture::full_iteration > encore::record::full_iteration > "
            "encore::layer.1/attn/forward > encore::attn::output") == 1);
}
