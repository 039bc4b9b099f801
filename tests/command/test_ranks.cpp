// SPDX-License-Identifier: Apache-2.0
// Trainings on several ranks, which are threads of the command here; processes of a job are in tests/mpi.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

std::vector<double> losses_in(const std::string& log) {
  std::vector<double> losses;
  for (const std::string& line : lines_of(read_bytes(log)))
    losses.push_back(nlohmann::json::parse(line).at("loss").get<double>());
  return losses;
}

}  // namespace

TEST_CASE("data ranks train on what one rank has in as many microbatches, and replay what they do eagerly") {
  const TinyModel tiny;
  REQUIRE(encore(tiny.train({"--set", "train.microbatches=2", "--log", tiny.path("one")})).code == 0);
  const std::vector<double> one = losses_in(tiny.path("one"));
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{}, {"--set", "parallel.shard_optimizer=true"}}) {
    std::vector<std::string> arguments{"--set", "parallel.data=2", "--log", tiny.path("two")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = encore(tiny.train(arguments));
    CHECK_MESSAGE(outcome.code == 0, outcome.error);
    CHECK(outcome.output.find("ranks: 2: 1 tensor x 2 data x 1 stages; threads of one process") !=
          std::string::npos);
    CHECK(outcome.output.find("eager against replay: bit-identical") != std::string::npos);
    const std::vector<double> two = losses_in(tiny.path("two"));
    REQUIRE(two.size() == one.size());
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(two[i] == doctest::Approx(one[i]).epsilon(1e-4));
  }
}

TEST_CASE(
    "profiles and comparisons of several ranks end, and a checkpoint of two is evaluated by one and by two") {
  const TinyModel tiny;
  for (const char* const ranks : {"parallel.data=2", "parallel.tensor=2"}) {
    CAPTURE(ranks);
    const Outcome profile = encore(tiny.arguments("profile", {"--set", ranks}));
    CHECK_MESSAGE(profile.code == 0, profile.error);
    CHECK(profile.output.find("the whole step: ") != std::string::npos);
    const Outcome comparison = encore(tiny.arguments("ab", {"--set", ranks, "--steps", "10"}));
    CHECK_MESSAGE(comparison.code == 0, comparison.error);
    CHECK(comparison.output.find("every bit is the same") != std::string::npos);
    REQUIRE(encore(tiny.train({"--set", ranks, "--save", tiny.path("saved.safetensors")})).code == 0);
    const auto loss = [&](const std::vector<std::string>& more) {
      std::vector<std::string> arguments{"eval",      "--load", tiny.path("saved.safetensors"),
                                         "--backend", "serial", "--json"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const Outcome outcome = encore(arguments);
      REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
      return nlohmann::json::parse(outcome.output).at("loss").get<double>();
    };
    CHECK(loss({"--set", ranks}) == doctest::Approx(loss({})).epsilon(1e-5));
  }
}

TEST_CASE("an interrupted training of several ranks stops after the same step on all and is saved") {
  const TinyModel tiny;
  BackgroundRun run(tiny.train({"--set", "parallel.data=2", "--steps", "100000", "--save",
                                tiny.path("saved.safetensors"), "--log", tiny.path("log")}));
  while (!std::filesystem::exists(tiny.path("log.partial")))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  run.send(SIGINT);
  const Outcome outcome = run.wait();
  CHECK(outcome.code == 128 + SIGINT);
  CHECK_MESSAGE(outcome.output.find("interrupted (Interrupt) after step ") != std::string::npos,
                outcome.error);
  CHECK(std::filesystem::exists(tiny.path("saved.safetensors")));
}

TEST_CASE("several GPUs without a launcher, and a job of another size, are refused with what to start") {
  const TinyModel tiny;
  const Outcome alone = encore(tiny.train({"--set", "parallel.data=4", "--backend", "cuda"}));
  CHECK(alone.code != 0);
  CHECK(alone.error.find("torchrun --no-python --nproc-per-node 4 encore train") != std::string::npos);
  const Outcome job =
      encore(tiny.train(),
             {.largest_file = {}, .output = {}, .environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0"}});
  CHECK(job.code != 0);
  CHECK_MESSAGE(
      job.error.find("torchrun has started 2 processes, but parallel.data = 1") != std::string::npos,
      job.error);
}
