// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

std::string lengths_file(const TinyModel& tiny, const std::string& text) {
  const std::string path = tiny.path("lengths.txt");
  std::ofstream(path) << text;
  return path;
}

}  // namespace

TEST_CASE(
    "steps draw their lengths from a file, a resumed run the same ones, and what was padded is reported") {
  const TinyModel tiny;
  const std::string file = lengths_file(tiny, "3 2\n7 5\n16\n");
  const std::vector<std::string> settings{
      "--lengths", file, "--set", "graph.buckets=4,8,16", "--set", "graph.warmup_steps=0"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.end(), settings.begin(), settings.end());
    return encore(tiny.train(more));
  };
  const Outcome whole = run({"--steps", "30", "--log", tiny.path("whole"), "--save", tiny.path("a")});
  REQUIRE_MESSAGE(whole.code == 0, whole.error);
  CHECK(whole.output.find("3 lengths recorded, which 100.0 % of the steps replayed") != std::string::npos);
  REQUIRE(run({"--steps", "11", "--log", tiny.path("first"), "--save", tiny.path("b")}).code == 0);
  REQUIRE(
      run({"--steps", "30", "--log", tiny.path("first"), "--load", tiny.path("b"), "--save", tiny.path("b")})
          .code == 0);
  CHECK(read_bytes(tiny.path("a")) == read_bytes(tiny.path("b")));
}

TEST_CASE("lengths that cannot be drawn are refused with the file") {
  const TinyModel tiny;
  const auto refused = [&](const std::string& text, std::initializer_list<std::string_view> words) {
    check_refused(encore(tiny.train({"--lengths", lengths_file(tiny, text)})), 3, words);
  };
  refused("4\nx\n", {"lengths.txt", "line 2"});
  refused("4\n100000\n", {"lengths.txt", "100000", "train.seq"});
  refused("16 9223372036854775807\n8 9223372036854775807\n", {"lengths.txt"});
  refused("", {"lengths.txt"});
}

TEST_CASE("validated steps end a training like any other, and say so in the log") {
  const TinyModel tiny;
  const Outcome outcome = encore(tiny.train({"--steps", "12", "--graph-validate", "4", "--set",
                                             "graph.checksums=true", "--log", tiny.path("log")}));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  std::ifstream log(tiny.path("log"));
  std::size_t validated = 0;
  for (std::string line; std::getline(log, line);)
    validated += line.find("\"validated\":true") != std::string::npos;
  CHECK(validated == 3);
}

TEST_CASE(
    "a loss that is not a number is refused with the segment that wrote it first, where there are "
    "checksums") {
  const TinyModel tiny;
  const std::vector<std::string> explode{"--steps", "200",
                                         "--set",   "train.lr=100",
                                         "--set",   "train.clip=0",
                                         "--set",   "train.min_lr=100",
                                         "--set",   "train.weight_decay=100"};
  auto checked = explode;
  checked.insert(checked.end(), {"--set", "graph.checksums=true"});
  check_refused(encore(tiny.train(explode)), 5,
                {"gave loss", "graph.checksums = true would name the segment"});
  check_refused(encore(tiny.train(checked)), 5, {"gave loss", "segment '", "are not finite"});
}

TEST_CASE("a warm-up that is longer than the training does not keep the verdict waiting") {
  const TinyModel tiny;
  const Outcome outcome = encore(tiny.train({"--steps", "3", "--set", "graph.warmup_steps=1000000"}));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.output.find("eager against replay: bit-identical") != std::string::npos);
}
