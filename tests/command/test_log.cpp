// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <set>

#include "run_command.hpp"
#include "tiny_model.hpp"

using nlohmann::json;

namespace {

std::vector<json> log_of(const std::string& path) {
  std::vector<json> steps;
  for (const std::string& line : lines_of(read_bytes(path))) steps.push_back(json::parse(line));
  return steps;
}

}  // namespace

TEST_CASE("the log holds one object a step with every field") {
  const TinyModel tiny;
  const Outcome outcome = encore(tiny.train({"--log", tiny.path("run.jsonl"), "--no-verdict"}));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  const auto steps = log_of(tiny.path("run.jsonl"));
  REQUIRE(steps.size() == 8);
  const std::set<std::string> modes{"eager", "capture", "replay"};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const json& step = steps[i];
    CHECK(step.size() == 14);
    CHECK(step["step"] == i + 1);
    CHECK(step["loss"].get<double>() > 0);
    CHECK(step["grad_norm"].get<double>() > 0);
    CHECK(step["lr"].get<double>() > 0);
    CHECK(step["tokens_per_s"].get<double>() > 0);
    CHECK(step["ms"].get<double>() > 0);
    CHECK(modes.contains(step["mode"].get<std::string>()));
    CHECK(step["host_syncs"] == 0);
    CHECK(step["fallbacks"] == 0);
    CHECK((step["graph_nodes"] > 0) == (step["mode"] != "eager"));
  }
  CHECK(steps[2]["mode"] == "eager");
  CHECK(steps[3]["mode"] == "capture");
  CHECK(steps[4]["mode"] == "replay");
  CHECK(steps[7]["mode"] == "replay");
}

TEST_CASE("a run without graphs logs eager steps alone") {
  const TinyModel tiny;
  REQUIRE(encore(tiny.train({"--log", tiny.path("run.jsonl"), "--set", "graph.impl=none"})).code == 0);
  for (const json& step : log_of(tiny.path("run.jsonl"))) {
    CHECK(step["mode"] == "eager");
    CHECK(step["graph_nodes"] == 0);
  }
}

TEST_CASE("a log that the disk has no room for ends the run, keeps whole lines, and the training is saved") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--log", "/dev/full", "--save", tiny.path("model.safetensors")})), 3,
                {"/dev/full", "No space left"});
  CHECK(std::filesystem::file_size(tiny.path("model.safetensors")) > 10000);

  const Outcome limited =
      encore(tiny.train({"--log", tiny.path("run.jsonl")}), {.largest_file = 500, .output = {}});
  check_refused(limited, 3, {"run.jsonl"});
  const auto steps = log_of(tiny.path("run.jsonl"));
  CHECK(steps.size() >= 1);
  CHECK(steps.size() < 8);
}

TEST_CASE("a log or checkpoint in a folder that does not exist is refused before training") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--log", tiny.path("no/run.jsonl")})), 3, {"no/run.jsonl"});
  const Outcome outcome = encore(tiny.train({"--save", tiny.path("no/model.safetensors")}));
  check_refused(outcome, 3, {"no/model.safetensors"});
  CHECK(outcome.output.find("step") == std::string::npos);
  check_refused(encore(tiny.train({"--log", tiny.path("same"), "--save", tiny.path("same")})), 2,
                {"--log", "--save", "same"});
}

TEST_CASE("a resumed run goes on in its own log") {
  const TinyModel tiny;
  const std::string log = tiny.path("run.jsonl"), model = tiny.path("model.safetensors");
  REQUIRE(encore(tiny.train({"--steps", "4", "--log", log, "--save", model, "--no-verdict"})).code == 0);
  const std::string before = read_bytes(log);
  const Outcome outcome = encore(tiny.train({"--load", model, "--log", log, "--no-verdict"}));
  CHECK(outcome.code == 0);
  CHECK(outcome.output.find("resumed after step 4") != std::string::npos);
  CHECK(read_bytes(log).starts_with(before));
  const auto steps = log_of(log);
  REQUIRE(steps.size() == 8);
  for (std::size_t i = 0; i < steps.size(); ++i) CHECK(steps[i]["step"] == i + 1);
}
