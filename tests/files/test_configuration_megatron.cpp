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
                       doctest::Contains("cuda_graph_impl = true (f) must be a string"), ConfigurationError);
}

TEST_CASE("the older flags mean what they were replaced by") {
  CHECK(graph({{"enable_cuda_graph", "true"}}).impl == GraphImplementation::layer);
  CHECK(graph({{"external_cuda_graph", "true"}}).impl == GraphImplementation::layer);
  CHECK(graph({{"external_cuda_graph", "false"}}).impl == GraphImplementation::full_iteration);
  CHECK(graph({{"external_cuda_graph", "true"}, {"cuda_graph_scope", "attn"}}).modules ==
        std::vector{GraphModule::attn});
  CHECK(graph({{"enable_cuda_graph", "true"}, {"cuda_graph_scope", "full_iteration"}}).impl ==
        GraphImplementation::full_iteration);
  CHECK(graph({{"cuda_graph_scope", "full_iteration"}}).impl == GraphImplementation::full_iteration);
  CHECK(graph({{"cuda_graph_impl", "none"}, {"cuda_graph_scope", "full_iteration"}}).impl ==
        GraphImplementation::full_iteration);
  CHECK(graph({{"cuda_graph_impl", "none"}, {"cuda_graph_scope", "attn"}}).modules.empty());
  check_refused({{"enable_cuda_graph", "1"}},
                "enable_cuda_graph = '1' (--enable_cuda_graph) must be true or false");
}

TEST_CASE("Megatron's names for recompute, delayed gradients and pipelines mean the same here") {
  const auto resolve = [](Flags flags) {
    ConfigurationSources sources;
    sources.preset("bytes").assignment("model.layers=8").assignment("train.microbatches=4");
    for (const auto& [key, value] : flags) sources.flag(key, value, std::string("--") + key);
    return sources.resolve().configuration;
  };
  using Modules = std::vector<RecomputeModule>;
  CHECK(resolve({{"recompute_granularity", "full"}}).train.recompute == Modules{RecomputeModule::full});
  CHECK(resolve({{"recompute_granularity", "selective"}}).train.recompute == Modules{RecomputeModule::attn});
  CHECK(resolve({{"recompute_granularity", "selective"}, {"recompute_modules", "mlp,core_attn"}})
            .train.recompute == Modules{RecomputeModule::attn, RecomputeModule::mlp});
  CHECK(resolve({{"delay_wgrad_compute", "true"}}).train.delay_wgrad);
  CHECK_FALSE(resolve({{"delay_wgrad_compute", "false"}}).train.delay_wgrad);
  CHECK(resolve({{"pipeline_model_parallel_size", "2"}}).parallel.pipeline == 2);
  for (const auto& [key, value] : Flags{{"virtual_pipeline_model_parallel_size", "4"},
                                        {"num_virtual_stages_per_pipeline_rank", "4"},
                                        {"num_layers_per_virtual_pipeline_stage", "1"}}) {
    CAPTURE(key);
    const Configuration configuration = resolve({{"pipeline_model_parallel_size", "2"}, {key, value}});
    CHECK(configuration.parallel.pipeline == 2);
    CHECK(configuration.parallel.virtual_stages == 4);
    CHECK(resolve({{"parallel.pipeline", "2"}, {key, value}}).parallel.virtual_stages == 4);
  }
  const Configuration file = ConfigurationSources()
                                 .preset("bytes")
                                 .json(R"({"recompute_granularity": "selective", "recompute_modules": ["mlp"],
                    "recompute_method": null, "delay_wgrad_compute": true, "model.layers": 4,
                    "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": null})",
                                       "f")
                                 .resolve()
                                 .configuration;
  CHECK(file.train.recompute == Modules{RecomputeModule::mlp});
  CHECK(file.train.delay_wgrad);
  CHECK(file.parallel.pipeline == 4);
  CHECK_THROWS_WITH_AS(resolve({{"recompute_granularity", "some"}}),
                       doctest::Contains("recompute_granularity = 'some' (--recompute_granularity) must be "
                                         "full or selective"),
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(resolve({{"num_layers_per_virtual_pipeline_stage", "0"}}),
                       doctest::Contains("num_layers_per_virtual_pipeline_stage = 0"), ConfigurationError);
  CHECK_THROWS_WITH_AS(
      resolve({{"pipeline_model_parallel_size", "2"}, {"num_layers_per_virtual_pipeline_stage", "9999"}}),
      doctest::Contains("G-43: num_layers_per_virtual_pipeline_stage = '9999'"), ConfigurationError);
  CHECK_THROWS_WITH_AS(ConfigurationSources().assignment("num_layers_per_virtual_pipeline_stage=2").resolve(),
                       doctest::Contains("are missing"), ConfigurationError);
}

TEST_CASE("a value of the wrong JSON type under one of Megatron's names is refused, and null sets nothing") {
  const auto resolve = [](const char* json) {
    return ConfigurationSources().preset("bytes").json(json, "f").resolve().configuration.graph;
  };
  CHECK(resolve(R"({"external_cuda_graph": true, "cuda_graph_impl": null})").impl ==
        GraphImplementation::layer);
  CHECK(resolve(R"({"cuda_graph_modules": []})") == resolve("{}"));
  CHECK(resolve(R"({"cuda_graph_impl": null, "inference_cuda_graph_scope": null})").impl ==
        GraphImplementation::full_iteration);
  for (const auto& [json, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"cuda_graph_impl": ["local"]})", R"(cuda_graph_impl = ["local"] (f) must be a string)"},
           {R"({"cuda_graph_impl": 3})", "cuda_graph_impl = 3 (f) must be a string"},
           {R"({"cuda_graph_scope": [1]})",
            "cuda_graph_scope = [1] (f) must be a string or a list of strings"},
           {R"({"cuda_graph_warmup_steps": "3"})",
            "cuda_graph_warmup_steps = \"3\" (f) must be a whole number"},
           {R"({"cuda_graph_warmup_steps": 2.5})",
            "cuda_graph_warmup_steps = 2.5 (f) must be a whole number"},
           {R"({"enable_cuda_graph": "true"})", "enable_cuda_graph = \"true\" (f) must be true or false"}}) {
    CAPTURE(json);
    CHECK_THROWS_WITH_AS(resolve(json), doctest::Contains(reason), ConfigurationError);
  }
  check_refused({{"cuda_graph_warmup_steps", "-1"}},
                "cuda_graph_warmup_steps = -1 (--cuda_graph_warmup_steps) must be a whole number from 0");
}

TEST_CASE("Megatron's form and this project's form of the same setting together are an error") {
  check_refused(
      {{"cuda_graph_impl", "local"}, {"graph.impl", "layer"}},
      "cuda_graph_impl = 'local' (--cuda_graph_impl) and graph.impl = layer (--graph.impl): they could "
      "contradict each other; keep one of them");
  CHECK(graph({{"cuda_graph_impl", "local"}, {"graph.warmup_steps", "4"}}).warmup_steps == 4);
}
