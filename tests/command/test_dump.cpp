// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

using Json = nlohmann::json;

/// Writes the dump of the model with more settings into a file of its folder.
std::string dump_to(const TinyModel& tiny, const std::string& name, std::vector<std::string> more = {}) {
  more.push_back("--json");
  const Outcome outcome = encore(tiny.arguments("dump", more));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.error.empty());
  write_bytes(tiny.path(name), outcome.output);
  return outcome.output;
}

Outcome difference(const TinyModel& tiny, const std::string& one, const std::string& other,
                   std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"dump", "--diff", tiny.path(one), tiny.path(other)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return encore(arguments);
}

}  // namespace

TEST_CASE("two dumps of one configuration are equal byte for byte") {
  const TinyModel tiny;
  CHECK(dump_to(tiny, "a.json") == dump_to(tiny, "b.json"));
  const Outcome same = difference(tiny, "a.json", "b.json");
  CHECK(same.code == 0);
  CHECK(same.output == "no difference\n");
  const Outcome json = difference(tiny, "a.json", "b.json", {"--json"});
  CHECK(json.code == 0);
  CHECK(Json::parse(json.output) == Json{{"equal", true}, {"differences", Json::array()}});
}

TEST_CASE("a dump holds buffers, segments with their kernels, and runs") {
  const TinyModel tiny;
  const Json dump = Json::parse(dump_to(tiny, "a.json", {"--set", "graph.impl=layer"}));
  CHECK(dump["arena_bytes"] > 0);
  CHECK(dump["settings"]["graph.impl"] == "layer");
  std::size_t captured = 0;
  for (const Json& run : dump["runs"]) captured += run["captured"] == true ? 1 : 0;
  CHECK(captured == 5);
  bool found = false;
  for (const Json& segment : dump["segments"])
    if (segment["name"] == "layer.1/attn/forward") {
      found = true;
      CHECK(segment["layer"] == 1);
      CHECK(segment["module"] == "attn");
      CHECK(segment["kernels"].size() >= 4);
      CHECK(segment["read_bytes"] > 0);
    }
  CHECK(found);
}

TEST_CASE("what differs between two dumps is told, with exit code 1") {
  const TinyModel tiny;
  dump_to(tiny, "a.json");
  dump_to(tiny, "b.json", {"--set", "model.layers=3", "--set", "graph.impl=layer"});
  const Outcome text = difference(tiny, "a.json", "b.json");
  CHECK(text.code == 1);
  CHECK(text.error.empty());
  for (const char* const part : {"setting changed", "model.layers: 2 -> 3", "segment added",
                                 "layer.2/attn/forward", "run removed", "arena resized"})
    CHECK_MESSAGE(text.output.find(part) != std::string::npos, part);
  const Outcome json = difference(tiny, "a.json", "b.json", {"--json"});
  CHECK(json.code == 1);
  const Json object = Json::parse(json.output);
  CHECK(object["equal"] == false);
  CHECK(object["differences"].size() > 10);
}

TEST_CASE("a file that is no dump, or is missing, is refused by name") {
  const TinyModel tiny;
  dump_to(tiny, "a.json");
  write_bytes(tiny.path("b.json"), "{}");
  check_refused(difference(tiny, "a.json", "b.json"), 3, {"b.json", "no dump"});
  check_refused(difference(tiny, "a.json", "c.json"), 3, {"c.json"});
  check_refused(difference(tiny, "tiny.json", "a.json"), 3, {"tiny.json", "no dump"});
}

TEST_CASE("dumps for people and for Graphviz are printed") {
  const TinyModel tiny;
  const Outcome text = encore(tiny.arguments("dump"));
  CHECK(text.code == 0);
  CHECK(text.output.find("run full_iteration (captured)") != std::string::npos);
  const Outcome dot = encore(tiny.arguments("dump", {"--dot"}));
  CHECK(dot.code == 0);
  CHECK(dot.output.starts_with("digraph"));
  CHECK(dot.output.find("layer.1/mlp/backward") != std::string::npos);
}
