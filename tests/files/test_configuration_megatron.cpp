// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

using namespace encore::model;
using encore::ConfigurationError;

namespace {

using Flags = std::initializer_list<std::pair<const char*, const char*>>;

GraphConfiguration graph(Flags flags) {
  ConfigurationSources sources;
  sources.preset("bytes");
  for (const auto& [key, value] : flags) sources.flag(key, value, std::string("--") + key);
  return sources.resolve().configuration.graph;
}

void check_refused(Flags flags, const char* reason) {
  CAPTURE(reason);
  CHECK_THROWS_WITH_AS(graph(flags), doctest::Contains(reason), ConfigurationError);
}

}  // namespace

TEST_CASE("Megatron's names for what is recorded mean the same here") {
  CHECK(graph({{"cuda_graph_impl", "none"}}).impl == GraphImplementation::none);
  CHECK(graph({{"cuda_graph_impl", "local"}}).impl == GraphImplementation::layer);
  CHECK(graph({{"cuda_graph_impl", "transformer_engine"}}).impl == GraphImplementation::layer);
  CHECK(graph({{"cuda_graph_impl", "full_iteration"}}).impl == GraphImplementation::full_iteration);
  CHECK(graph({{"cuda_graph_impl", "local"}, {"cuda_graph_scope", "full_iteration"}}).impl ==
        GraphImplementation::full_iteration);
  CHECK(graph({{"cuda_graph_impl", "full_iteration"}, {"cuda_graph_scope", "full_iteration"}}).impl ==
        GraphImplementation::full_iteration);
  CHECK(graph({{"cuda_graph_impl", "local"}, {"cuda_graph_scope", "full"}}).modules.empty());
  const GraphConfiguration both =
      graph({{"cuda_graph_impl", "transformer_engine"}, {"cuda_graph_modules", "mlp,attn"}});
  CHECK(both.impl == GraphImplementation::layer);
  CHECK(both.modules == std::vector{GraphModule::attn, GraphModule::mlp});
  CHECK(both.optimizer == OptimizerPlacement::separate);
  CHECK(graph({{"cuda_graph_warmup_steps", "7"}}).warmup_steps == 7);
}

TEST_CASE("Megatron's names are accepted in a configuration file") {
  ConfigurationSources sources;
  sources.preset("bytes").json(
      R"({"cuda_graph_impl": "local", "cuda_graph_scope": ["attn", "mlp"], "cuda_graph_warmup_steps": 2})",
      "f");
  CHECK(sources.resolve().configuration.graph.modules.size() == 2);
  CHECK(sources.resolve().configuration.graph.warmup_steps == 2);
  CHECK_THROWS_WITH_AS(sources.json(R"({"cuda_graph_impl": true})", "f"),
                       doctest::Contains("cuda_graph_impl (f) must be"), ConfigurationError);
}

TEST_CASE("combinations that Megatron refuses are refused") {
  check_refused({{"cuda_graph_impl", "cudagraph"}},
                "must be one of none, local, transformer_engine, full_iteration");
  check_refused({{"cuda_graph_impl", "full_iteration"}, {"cuda_graph_scope", "attn"}},
                "the whole iteration is recorded");
  check_refused({{"cuda_graph_impl", "full_iteration"}, {"cuda_graph_scope", "full"}},
                "the whole iteration is recorded");
  check_refused({{"cuda_graph_impl", "local"}, {"cuda_graph_scope", "full,attn"}},
                "full cannot stand beside");
  check_refused({{"cuda_graph_impl", "local"}, {"cuda_graph_scope", "attn,full_iteration"}},
                "full_iteration cannot stand beside");
  check_refused({{"cuda_graph_impl", "transformer_engine"}, {"cuda_graph_scope", "full_iteration"}},
                "contradicts");
  check_refused({{"cuda_graph_impl", "none"}, {"cuda_graph_scope", "attn"}},
                "has no meaning with cuda_graph_impl = 'none'");
  check_refused({{"cuda_graph_scope", "attn"}}, "needs cuda_graph_impl");
  check_refused({{"cuda_graph_impl", "local"}, {"cuda_graph_scope", "attn"}, {"cuda_graph_modules", "attn"}},
                "set the same thing");
  check_refused({{"cuda_graph_impl", "local"}, {"cuda_graph_scope", "moe"}},
                "is not supported in this version");
  check_refused({{"cuda_graph_warmup_steps", "-1"}}, "graph.warmup_steps = -1 (--cuda_graph_warmup_steps)");
}

TEST_CASE("Megatron's form and this project's form of the same setting together are an error") {
  check_refused(
      {{"cuda_graph_impl", "local"}, {"graph.impl", "layer"}},
      "cuda_graph_impl = 'local' (--cuda_graph_impl) and graph.impl (--graph.impl) set the same thing");
  check_refused({{"cuda_graph_impl", "local"}, {"graph.modules", "attn"}}, "set the same thing");
  check_refused({{"cuda_graph_warmup_steps", "3"}, {"graph.warmup_steps", "3"}}, "set the same thing");
  CHECK(graph({{"cuda_graph_impl", "local"}, {"graph.warmup_steps", "4"}}).warmup_steps == 4);
}
