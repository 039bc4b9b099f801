// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <csignal>
#include <thread>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

/// What decides the numbers of each step of a log, without what depends on the clock and on the graphs.
std::string numbers_of(const std::string& log) {
  std::string numbers;
  for (const std::string& line : lines_of(read_bytes(log))) {
    const auto step = nlohmann::json::parse(line);
    numbers += step["step"].dump() + ' ' + step["loss"].dump() + ' ' + step["grad_norm"].dump() + ' ' +
               step["lr"].dump() + '\n';
  }
  return numbers;
}

/// Waits until the file exists and is longer than so many bytes.
bool wait_for(const std::string& path, std::uintmax_t bytes) {
  for (int tries = 0; tries < 6000; ++tries) {
    std::error_code error;
    if (const auto size = std::filesystem::file_size(path, error); !error && size > bytes) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("half a training, saved and loaded, and the other half give the bits of the whole training") {
  for (const char* const settings :
       {"graph.impl=full_iteration", "graph.impl=layer", "train.precision=bf16"}) {
    CAPTURE(settings);
    const TinyModel tiny;
    const auto train = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--set", settings, "--no-verdict"});
      const Outcome outcome = encore(tiny.train(more));
      REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
    };
    train({"--save", tiny.path("whole.safetensors"), "--log", tiny.path("whole.jsonl")});
    train({"--steps", "4", "--save", tiny.path("half.safetensors"), "--log", tiny.path("half.jsonl")});
    train({"--load", tiny.path("half.safetensors"), "--save", tiny.path("resumed.safetensors"), "--log",
           tiny.path("half.jsonl")});
    CHECK(read_bytes(tiny.path("whole.safetensors")) == read_bytes(tiny.path("resumed.safetensors")));
    CHECK(read_bytes(tiny.path("whole.safetensors")) != read_bytes(tiny.path("half.safetensors")));
    CHECK(numbers_of(tiny.path("whole.jsonl")) == numbers_of(tiny.path("half.jsonl")));
  }
}

TEST_CASE("the same flags give the same bits, another seed gives others") {
  const TinyModel tiny;
  const auto train = [&](const std::string& name, const std::string& seed) {
    REQUIRE(encore(tiny.train({"--seed", seed, "--save", tiny.path(name), "--no-verdict"})).code == 0);
    return read_bytes(tiny.path(name));
  };
  const std::string first = train("a", "7");
  CHECK(first == train("b", "7"));
  CHECK(first != train("c", "8"));
}

TEST_CASE("a training that is complete already does nothing") {
  const TinyModel tiny;
  const std::string model = tiny.path("model.safetensors"), log = tiny.path("run.jsonl");
  REQUIRE(encore(tiny.train({"--save", model, "--log", log, "--no-verdict"})).code == 0);
  const std::string bytes = read_bytes(model), lines = read_bytes(log);
  const Outcome again = encore(tiny.train({"--load", model, "--save", model, "--log", log}));
  CHECK(again.code == 0);
  CHECK(again.output.find("nothing to do") != std::string::npos);
  CHECK(read_bytes(model) == bytes);
  CHECK(read_bytes(log) == lines);
}

TEST_CASE("a killed run leaves a whole checkpoint and a log that the next run goes on with") {
  const TinyModel tiny;
  const std::string model = tiny.path("model.safetensors"), log = tiny.path("run.jsonl");
  const std::vector<std::string> endless{"--steps", "100000000", "--save", model,
                                         "--log",   log,         "--set",  "train.checkpoint_interval=1"};
  {
    BackgroundRun run(tiny.train(endless));
    REQUIRE(wait_for(log + ".partial", 4000));
    run.send(SIGKILL);
    CHECK(run.wait().signal == SIGKILL);
  }
  const Outcome evaluated = encore({"eval", "--load", model, "--sequences", "2"});
  CHECK_MESSAGE(evaluated.code == 0, evaluated.error);
  CHECK_FALSE(std::filesystem::exists(log));

  BackgroundRun run([&] {
    auto arguments = tiny.train(endless);
    arguments.insert(arguments.end(), {"--load", model});
    return arguments;
  }());
  REQUIRE(wait_for(log + ".partial", std::filesystem::file_size(log + ".partial") + 2000));
  run.send(SIGTERM);
  const Outcome ended = run.wait();
  CHECK_MESSAGE(ended.code == 128 + SIGTERM, ended.error);
  const auto lines = lines_of(read_bytes(log));
  for (std::size_t i = 0; i < lines.size(); ++i) CHECK(nlohmann::json::parse(lines[i])["step"] == i + 1);
}

TEST_CASE("an interrupted run finishes its step, saves, and can be resumed to the same bits") {
  const TinyModel tiny;
  const std::string model = tiny.path("model.safetensors"), log = tiny.path("run.jsonl");
  BackgroundRun run(tiny.train({"--steps", "100000000", "--save", model, "--log", log}));
  REQUIRE(wait_for(log + ".partial", 2000));
  run.send(SIGINT);
  const Outcome outcome = run.wait();
  CHECK_MESSAGE(outcome.code == 128 + SIGINT, outcome.error);
  CHECK(outcome.error.empty());
  CHECK(outcome.output.find("interrupted") != std::string::npos);

  const std::size_t done = lines_of(read_bytes(log)).size();
  const std::string steps = std::to_string(done + 3);
  REQUIRE(encore(tiny.train({"--steps", steps, "--load", model, "--save", tiny.path("a"), "--no-verdict"}))
              .code == 0);
  REQUIRE(encore(tiny.train({"--steps", steps, "--save", tiny.path("b"), "--no-verdict"})).code == 0);
  CHECK(read_bytes(tiny.path("a")) == read_bytes(tiny.path("b")));
}

TEST_CASE("a reader of the output that leaves does not end the training") {
  const TinyModel tiny;
  BackgroundRun run(tiny.train({"--steps", "200", "--save", tiny.path("model.safetensors")}));
  run.close_output();
  const Outcome outcome = run.wait();
  CHECK(outcome.signal == 0);
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(std::filesystem::exists(tiny.path("model.safetensors")));
}
