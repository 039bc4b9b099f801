// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>

#include <doctest/doctest.h>

namespace {

using namespace encore;
using namespace encore::model;

GraphConfiguration resolve(const std::vector<std::string>& settings) {
  ConfigurationSources sources;
  for (const char* setting : {"model.family=llama", "model.layers=1", "model.hidden=8", "model.heads=2",
                              "model.vocab=16", "model.seq=64"})
    sources.assignment(setting);
  for (const std::string& setting : settings) sources.assignment(setting);
  return sources.resolve().configuration.graph;
}

TEST_CASE("buckets are a rising list of lengths, whatever order they were given in") {
  CHECK(resolve({"graph.buckets=64,16,32"}).buckets == std::vector<std::int64_t>{16, 32, 64});
  CHECK(resolve({"graph.buckets="}).buckets.empty());
  ConfigurationSources json;
  json.json(R"({"model": {"family": "llama", "layers": 1, "hidden": 8, "heads": 2, "vocab": 16, "seq": 64},
                "graph": {"buckets": [32, 8]}})",
            "f");
  CHECK(json.resolve().configuration.graph.buckets == std::vector<std::int64_t>{8, 32});
}

TEST_CASE("buckets that cannot be are refused by name") {
  const auto refused = [](const std::vector<std::string>& settings, const char* sentence) {
    CHECK_THROWS_WITH_AS(resolve(settings), doctest::Contains(sentence), ConfigurationError);
  };
  refused({"graph.buckets=16,16"}, "each at most once");
  refused({"graph.buckets=0"}, "whole numbers from 1");
  refused({"graph.buckets=16,x"}, "graph.buckets = '16,x'");
  refused({"graph.buckets=16,65"}, "G-35: graph.buckets = 16,65 with train.seq = 64: ");
  refused({"graph.buckets=1,2,3", "graph.recordings=2"},
          "G-36: graph.buckets = 1,2,3 with graph.recordings = 2: ");
  refused({"graph.above_largest=ignore"}, "must be one of eager, refuse");
}

}  // namespace
