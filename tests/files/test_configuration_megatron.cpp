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

TEST_CASE("Megatron's names for experts and Mamba layers mean the same here") {
  const auto resolve = [](Flags flags) {
    ConfigurationSources sources;
    sources.preset("hybrid");
    for (const auto& [key, value] : flags) sources.flag(key, value, std::string("--") + key);
    return sources.resolve().configuration;
  };
  const Configuration all = resolve({{"num_experts", "16"},
                                     {"moe_router_topk", "3"},
                                     {"moe_ffn_hidden_size", "48"},
                                     {"moe_shared_expert_intermediate_size", "24"},
                                     {"moe_router_num_groups", "4"},
                                     {"moe_router_group_topk", "2"},
                                     {"moe_router_topk_scaling_factor", "2.5"},
                                     {"moe_router_enable_expert_bias", "true"},
                                     {"moe_router_bias_update_rate", "0.01"},
                                     {"moe_aux_loss_coeff", "0.02"},
                                     {"moe_z_loss_coeff", "0.03"},
                                     {"moe_input_jitter_eps", "0.04"},
                                     {"moe_expert_capacity_factor", "1.5"},
                                     {"moe_pad_expert_input_to_capacity", "true"},
                                     {"hybrid_override_pattern", "ME*-E"},
                                     {"mamba_num_heads", "4"},
                                     {"mamba_head_dim", "16"},
                                     {"mamba_state_dim", "8"},
                                     {"mamba_num_groups", "4"},
                                     {"qk_layernorm", "true"}});
  CHECK(all.model.experts == 16);
  CHECK(all.model.topk == 3);
  CHECK(all.model.expert_ffn == 48);
  CHECK(all.model.shared_ffn == 24);
  CHECK(all.model.router_groups == 4);
  CHECK(all.model.router_topk_groups == 2);
  CHECK(all.model.router_scale == 2.5);
  CHECK(all.model.expert_bias);
  CHECK_FALSE(resolve({{"moe_router_enable_expert_bias", "false"}}).model.expert_bias);
  CHECK(all.train.expert_bias_rate == 0.01);
  CHECK(all.train.balance_loss == 0.02);
  CHECK(all.train.router_z_loss == 0.03);
  CHECK(all.train.router_jitter == 0.04);
  CHECK(all.train.expert_capacity == 1.5);
  CHECK(all.model.pattern == "ME*-E");
  CHECK(all.model.mamba_heads == 4);
  CHECK(all.model.mamba_head_dim == 16);
  CHECK(all.model.mamba_state == 8);
  CHECK(all.model.mamba_groups == 4);
  CHECK(all.model.query_key_norm);
  CHECK(resolve({{"num_moe_experts", "12"}}).model.experts == 12);
  CHECK(resolve({{"moe_expert_rank_capacity_factor", "1.5"}}).train.expert_budget == 1);
  CHECK(resolve({{"moe_expert_rank_capacity_factor", "0.25"}}).train.expert_budget == 0.25);
  CHECK(resolve({{"recompute_granularity", "selective"}, {"recompute_modules", "moe"}}).train.recompute ==
        std::vector{RecomputeModule::moe});
  CHECK_THROWS_WITH_AS(resolve({{"num_experts", "4"}, {"num_moe_experts", "4"}}), doctest::Contains("G-07"),
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(resolve({{"moe_router_topk", "4"}, {"model.topk", "4"}}), doctest::Contains("G-07"),
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(resolve({{"moe_expert_rank_capacity_factor", "0"}}),
                       doctest::Contains("moe_expert_rank_capacity_factor = 0"), ConfigurationError);
  CHECK(ConfigurationSources()
            .preset("hybrid")
            .json(R"({"moe_aux_loss_coeff": 0.5, "moe_z_loss_coeff": null, "num_experts": 4})", "f")
            .resolve()
            .configuration.train.balance_loss == 0.5);
}

TEST_CASE("Megatron's softmax of the router comes after the choice unless it is told to come before") {
  const auto model = [](Flags flags) {
    ConfigurationSources sources;
    sources.preset("qwen3-30b-a3b");
    for (const auto& [key, value] : flags) sources.flag(key, value, std::string("--") + key);
    return sources.resolve().configuration.model;
  };
  const ModelConfiguration after = model({{"moe_router_score_function", "softmax"}});
  CHECK(after.router_score == RouterScore::softmax_of_largest);
  CHECK(model({{"moe_router_pre_softmax", "false"}}) == after);
  const ModelConfiguration before = model({{"moe_router_pre_softmax", "true"}});
  CHECK(before.router_score == RouterScore::softmax);
  CHECK_FALSE(before.router_renormalize);
  CHECK(model({{"moe_router_score_function", "softmax"}, {"moe_router_pre_softmax", "true"}}) == before);
  CHECK(model({{"moe_router_score_function", "sigmoid"}}).router_score == RouterScore::sigmoid);
  const auto refused = [&model](Flags flags, const char* reason) {
    CHECK_THROWS_WITH_AS(model(flags), doctest::Contains(reason), ConfigurationError);
  };
  refused({{"moe_router_score_function", "relu"}}, "must be softmax or sigmoid");
  refused({{"moe_router_score_function", "sigmoid"}, {"moe_router_pre_softmax", "true"}},
          "has no meaning with moe_router_score_function");
  refused({{"moe_router_score_function", "softmax"}, {"model.router_score", "softmax"}}, "G-07");
}
