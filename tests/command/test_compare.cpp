// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

using Json = nlohmann::json;

Json compared(const TinyModel& tiny, std::vector<std::string> more = {}) {
  more.push_back("--json");
  const Outcome outcome = encore(tiny.arguments("ab", more));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.error.empty());
  return Json::parse(outcome.output);
}

}  // namespace

TEST_CASE("ab gives a verdict with its interval, memory, loss difference and break-even step") {
  const TinyModel tiny;
  for (const char* const policy : {"graph.impl=full_iteration", "graph.impl=layer"}) {
    const Json result = compared(tiny, {"--set", policy});
    CHECK(result["identical"] == true);
    CHECK(result["difference"].is_null());
    CHECK(result["loss_difference"] == 0.0);
    CHECK(result["steps"] == 40);
    CHECK(result["pairs"] == 20);
    CHECK(result["blocks"]["eager_ms"].size() == 20);
    const Json speedup = result["speedup"];
    CHECK(speedup["lower"] <= speedup["median"]);
    CHECK(speedup["median"] <= speedup["upper"]);
    CHECK(speedup["confidence"] >= 0.95);
    CHECK(result["capture_ms"] > 0);
    CHECK(result["graph_nodes"] > 0);
    CHECK(result["replay_bytes"] >= result["eager_bytes"]);
    const std::string verdict = result["verdict"];
    CHECK((verdict == "keep" || verdict == "do not keep" || verdict == "not enough evidence"));
    // The verdict is what its rule says about its interval.
    const double needed = 1.02;
    CHECK((speedup["lower"] > needed) == (verdict == "keep"));
    CHECK((speedup["upper"] < needed) == (verdict == "do not keep"));
    CHECK(result["break_even_steps"].is_null() == (result["saved_ms"] <= 0.0));
  }
}

TEST_CASE("noise much larger than the steps leaves the evidence insufficient, and ab says so") {
  const TinyModel tiny;
  const Json result = compared(tiny, {"--noise-ms", "30"});
  CHECK(result["verdict"] == "not enough evidence");
  CHECK(result["identical"] == true);
  CHECK(result["eager_ms"] > 1.0);
  CHECK(result["noise_ms"] == 30.0);
}

TEST_CASE("fewer pairs than a verdict needs are not enough evidence, plainly said, with exit code 0") {
  const TinyModel tiny;
  const Outcome outcome = encore(tiny.arguments("ab", {"--steps", "3"}));
  CHECK(outcome.code == 0);
  CHECK(lines_of(outcome.output).back() ==
        "verdict: not enough evidence: 3 pairs of blocks are fewer than 8: more steps");
}

TEST_CASE("a threshold that no replay reaches gives do not keep, one of nothing never small gain") {
  const TinyModel tiny;
  const Json high = compared(tiny, {"--threshold", "1000"});
  CHECK(high["verdict"] == "do not keep");
  CHECK(high["small_gain"] == (high["speedup"]["lower"] > 1.0));
  CHECK(compared(tiny, {"--threshold", "0"})["small_gain"] == false);
}

TEST_CASE("ab for people is a few lines that end with the verdict") {
  const TinyModel tiny;
  const Outcome outcome = encore(tiny.arguments("ab"));
  CHECK(outcome.code == 0);
  const auto lines = lines_of(outcome.output);
  CHECK(lines.size() == 8);
  CHECK(lines.back().starts_with("verdict: "));
  for (const char* const part :
       {"eager: ", "replay: ", "speed-up: ", "interval", "memory: ", "every bit is the same",
        "largest loss difference 0", "capture: ", "paid for "})
    CHECK_MESSAGE(outcome.output.find(part) != std::string::npos, part);
}

TEST_CASE("without graphs there is nothing to compare, for a reason") {
  const TinyModel tiny;
  const Json result = compared(tiny, {"--set", "graph.impl=none"});
  CHECK(result["verdict"] == "not enough evidence");
  CHECK(result["reason"] == "graph.impl is none");
  CHECK(result["steps"] == 0);
}
