// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

using Json = nlohmann::json;

Json profiled(const TinyModel& tiny, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--json", "--samples", "3", "--step-samples", "3"});
  const Outcome outcome = encore(tiny.arguments("profile", more));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.error.empty());
  return Json::parse(outcome.output);
}

const Json* find(const Json& profile, const std::string& name) {
  for (const Json& row : profile["rows"])
    if (row["name"] == name) return &row;
  return nullptr;
}

}  // namespace

TEST_CASE("profile tells what each kind of segment takes against its floor, the largest gap first") {
  const TinyModel tiny;
  const Json result = profiled(tiny);
  CHECK(result["by"] == "module");
  for (const char* const rate : {"flops_per_second", "bytes_per_second", "seconds_per_node"})
    CHECK(result["rates"][rate] > 0.0);
  for (const char* const name :
       {"embedding forward", "attn forward", "attn backward", "mlp forward", "mlp backward", "head forward"})
    CHECK_MESSAGE(find(result, name) != nullptr, name);
  REQUIRE(find(result, "attn forward") != nullptr);
  const Json& attention = *find(result, "attn forward");
  CHECK(attention["count"] == 2);  // layers
  CHECK(attention["flops"] > 0.0);
  CHECK(attention["bytes"] > 0.0);
  CHECK(attention["nodes"] > 2.0);
  double milliseconds = 0, floors = 0, shares = 0;
  for (std::size_t i = 0; i < result["rows"].size(); ++i) {
    const Json& row = result["rows"][i];
    if (i > 0) CHECK(result["rows"][i - 1]["gap_ms"] >= row["gap_ms"]);
    CHECK(row["gap_ms"] == doctest::Approx(row["ms"].get<double>() - row["floor_ms"].get<double>()));
    CHECK(std::set<std::string>{"arithmetic", "memory", "launches"}.contains(row["bound"]));
    milliseconds += row["ms"].get<double>();
    floors += row["floor_ms"].get<double>();
    shares += row["share"].get<double>();
  }
  CHECK(result["sum"]["ms"] == doctest::Approx(milliseconds));
  CHECK(result["sum"]["floor_ms"] == doctest::Approx(floors));
  CHECK(shares == doctest::Approx(1.0));
  CHECK(result["replay"]["ms"] > 0.0);
  CHECK(result["replay"]["nodes"] == result["sum"]["nodes"]);
  CHECK(result["configuration"]["model"]["layers"] == 2);
}

TEST_CASE("profile groups by segment and by kernel label too, with the same sums") {
  const TinyModel tiny;
  const Json by_segment = profiled(tiny, {"--by", "segment"});
  CHECK(by_segment["by"] == "segment");
  CHECK(find(by_segment, "layer.1/attn/forward") != nullptr);
  CHECK(by_segment["rows"].size() == by_segment["sum"]["count"]);
  const Json by_label = profiled(tiny, {"--by", "label"});
  CHECK(find(by_label, "encore::attn::output") != nullptr);
  double milliseconds = 0, flops = 0;
  for (const Json& row : by_label["rows"]) {
    milliseconds += row["ms"].get<double>();
    flops += row["flops"].get<double>();
  }
  CHECK(by_label["sum"]["ms"] == doctest::Approx(milliseconds));
  CHECK(by_label["sum"]["flops"] == doctest::Approx(flops));
  CHECK(by_segment["sum"]["flops"] == by_label["sum"]["flops"]);
  CHECK(by_segment["sum"]["bytes"] == by_label["sum"]["bytes"]);
}

TEST_CASE("profile prints a table with its sum, the step by replay, and the rates of the machine") {
  const TinyModel tiny;
  const Outcome outcome = encore(tiny.arguments("profile", {"--samples", "3", "--step-samples", "3"}));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.error.empty());
  for (const char* const part : {"bound by", "attn forward x 2", "  sum", "the whole step:", "by replay of",
                                 "rates measured here:", "FLOP/s", "us a node"})
    CHECK_MESSAGE(outcome.output.find(part) != std::string::npos, part);
  const Outcome alone = encore(tiny.arguments("profile", {"--samples", "3", "--step-samples", "0"}));
  CHECK(alone.code == 0);
  CHECK(alone.output.find("the whole step") == std::string::npos);
}

TEST_CASE("train --profile prints the table at the end") {
  const TinyModel tiny;
  const std::vector<std::string> plain{"--steps", "3", "--quiet", "--no-verdict"};
  std::vector<std::string> with = plain;
  with.push_back("--profile");
  const Outcome without = encore(tiny.train(plain));
  const Outcome outcome = encore(tiny.train(with));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(without.output.find("bound by") == std::string::npos);
  CHECK(outcome.output.find("bound by") != std::string::npos);
  CHECK(outcome.output.find("mlp backward x 2") != std::string::npos);
}

TEST_CASE("train --profile-file writes what profile --by segment --json prints") {
  const TinyModel tiny;
  const std::string file = tiny.path("profile.json");
  const Outcome outcome =
      encore(tiny.train({"--steps", "3", "--quiet", "--no-verdict", "--profile-file", file}));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.output.find("bound by") == std::string::npos);
  const Json result = Json::parse(read_bytes(file));
  CHECK(result["by"] == "segment");
  CHECK(find(result, "layer.1/attn/forward") != nullptr);
  CHECK(result["configuration"]["model"]["layers"] == 2);
  check_refused(encore(tiny.train({"--profile-file", tiny.path("no/profile.json")})), 3, {"no/profile.json"});
}

TEST_CASE("profile refuses what it does not understand with exit code 2") {
  const TinyModel tiny;
  check_refused(encore(tiny.arguments("profile", {"--by", "layer"})), 2, {"--by", "layer"});
  check_refused(encore(tiny.arguments("profile", {"--samples", "0"})), 2, {"--samples"});
  check_refused(encore(tiny.arguments("profile", {"--sample", "3"})), 2, {"'--sample'", "--samples"});
  check_refused(encore(tiny.arguments("profile", {"--set", "model.layer=2"})), 2, {"model.layer"});
  check_refused(encore({"profile", "--preset", "nothing"}), 2, {"nothing"});
  check_refused(encore(tiny.arguments("profile", {"more"})), 2, {"'more'", "encore profile --help"});
}
