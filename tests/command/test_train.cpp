// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <regex>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

std::string last_line(const Outcome& outcome) {
  const auto lines = lines_of(outcome.output);
  return lines.empty() ? "" : lines.back();
}

}  // namespace

TEST_CASE("a training ends with the verdict on eager and replayed steps") {
  const TinyModel tiny;
  for (const char* const policy : {"graph.impl=full_iteration", "graph.impl=layer", "graph.warmup_steps=0",
                                   "graph.optimizer=separate"}) {
    const Outcome outcome = encore(tiny.train({"--set", policy, "--verdict-steps", "12"}));
    CHECK_MESSAGE(outcome.code == 0, outcome.error);
    CHECK(outcome.error.empty());
    const std::regex verdict(
        R"(eager against replay: bit-identical over 12 steps \(loss, weights, optimizer state, random positions\); )"
        R"(eager [0-9.]+ ms, replay [0-9.]+ ms a step \([0-9.]+x\))");
    CHECK_MESSAGE(std::regex_match(last_line(outcome), verdict), last_line(outcome));
  }
}

TEST_CASE("the verdict changes nothing that is saved, and a short training has one too") {
  const TinyModel tiny;
  REQUIRE(encore(tiny.train({"--steps", "2", "--save", tiny.path("with")})).code == 0);
  const Outcome without =
      encore(tiny.train({"--steps", "2", "--save", tiny.path("without"), "--no-verdict"}));
  REQUIRE(without.code == 0);
  CHECK(without.output.find("eager against replay") == std::string::npos);
  CHECK(read_bytes(tiny.path("with")) == read_bytes(tiny.path("without")));
}

TEST_CASE("a training without graphs has no verdict") {
  const TinyModel tiny;
  const Outcome outcome = encore(tiny.train({"--cuda_graph_impl", "none"}));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.output.find("eager against replay") == std::string::npos);
  CHECK(outcome.output.find("replayed") == std::string::npos);
}

TEST_CASE("elsewhere than on a terminal progress is plain lines, from the first step to the last") {
  const TinyModel tiny;
  const std::string output = encore(tiny.train({"--steps", "60"})).output;
  CHECK(output.find('\r') == std::string::npos);
  CHECK(output.find('\x1b') == std::string::npos);
  CHECK(output.find("step  1/60  loss ") != std::string::npos);
  CHECK(output.find("step 60/60  loss ") != std::string::npos);
  CHECK(output.find("tokens/s") != std::string::npos);
  CHECK(output.find("left\n") != std::string::npos);
  CHECK(lines_of(output).size() < 40);
}

TEST_CASE("quiet, a training prints its result alone") {
  const TinyModel tiny;
  const auto lines = lines_of(encore(tiny.train({"--quiet"})).output);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].find("8 steps in") == 0);
  CHECK(lines[0].find("0 host waits, 0 fallbacks") != std::string::npos);
  CHECK(lines[1].find("eager against replay: bit-identical") == 0);
}

TEST_CASE("a training that diverges stops, says so, and keeps the last good checkpoint") {
  const TinyModel tiny;
  const std::string model = tiny.path("model.safetensors");
  REQUIRE(encore(tiny.train({"--save", model, "--no-verdict"})).code == 0);
  const std::string good = read_bytes(model);
  const Outcome outcome =
      encore(tiny.train({"--load", model, "--save", model, "--steps", "500", "--log", tiny.path("run.jsonl"),
                         "--set", "train.lr=100", "--set", "train.clip=0", "--set", "train.weight_decay=100",
                         "--set", "train.min_lr=100", "--set", "train.precision=fp32"}));
  check_refused(outcome, 5, {"loss", "step"});
  CHECK(read_bytes(model) == good);
  CHECK(lines_of(read_bytes(tiny.path("run.jsonl"))).size() >= 1);
}

TEST_CASE("every backend of this build trains to nearly the same loss") {
  const TinyModel tiny;
  const auto loss = [&](const std::string& backend) {
    const Outcome outcome =
        encore(tiny.train({"--quiet", "--no-verdict", "--backend", backend, "--threads", "2"}));
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
    return std::stod(outcome.output.substr(outcome.output.find("loss ") + 5));
  };
  CHECK(loss("openmp") == doctest::Approx(loss("serial")).epsilon(1e-3));
}
