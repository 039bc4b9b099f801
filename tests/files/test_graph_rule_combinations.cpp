// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string>

#include "graph_rule_cases.hpp"

using namespace encore::model;
using encore::ConfigurationError;

TEST_CASE("random combinations of graph keys resolve, to themselves, or are refused by a rule") {
  const Assignments pieces = {"graph.impl=none",
                              "graph.impl=layer",
                              "graph.impl=full_iteration",
                              "graph.modules=attn",
                              "graph.modules=mlp,attn",
                              "graph.modules=moe",
                              "graph.modules=moe_preprocess,moe_router",
                              "graph.modules=mamba,moe,moe_router",
                              "graph.modules=",
                              "graph.optimizer=joined",
                              "graph.optimizer=separate",
                              "graph.optimizer=eager",
                              "graph.warmup_steps=0",
                              "graph.validate_every=3",
                              "graph.memory_limit=1GiB",
                              "graph.recapture=true",
                              "graph.buckets=16,32",
                              "graph.buckets=32,1000",
                              "graph.recordings=1",
                              "graph.above_largest=refuse",
                              "graph.checksums=true",
                              "cuda_graph_impl=none",
                              "cuda_graph_impl=local",
                              "cuda_graph_impl=transformer_engine",
                              "cuda_graph_impl=full_iteration",
                              "cuda_graph_impl=unknown",
                              "cuda_graph_scope=attn",
                              "cuda_graph_scope=full",
                              "cuda_graph_scope=full_iteration",
                              "cuda_graph_scope=",
                              "cuda_graph_modules=attn,mlp",
                              "cuda_graph_modules=full,full_iteration",
                              "cuda_graph_modules=attn,attn",
                              "cuda_graph_modules=full_iteration_inference",
                              "cuda_graph_warmup_steps=0",
                              "enable_cuda_graph=true",
                              "enable_cuda_graph=false",
                              "external_cuda_graph=true",
                              "inference_cuda_graph_scope=none",
                              "inference_cuda_graph_scope=layer",
                              "use_te_rng_tracker=true",
                              "parallel.data=2",
                              "parallel.pipeline=2",
                              "parallel.virtual_stages=2",
                              "pipeline_model_parallel_size=2",
                              "num_layers_per_virtual_pipeline_stage=1",
                              "virtual_pipeline_model_parallel_size=1",
                              "train.microbatches=4",
                              "train.recompute=attn",
                              "train.recompute=mlp,full",
                              "recompute_granularity=full",
                              "recompute_granularity=selective",
                              "recompute_modules=core_attn,mlp",
                              "recompute_modules=moe_act",
                              "recompute_method=block",
                              "train.delay_wgrad=true",
                              "delay_wgrad_compute=true",
                              "model.attention_dropout=0.1"};
  std::mt19937 random(17);
  int accepted = 0;
  std::set<std::string> refused_by;
  for (int round = 0; round < 4000; ++round) {
    Assignments chosen;
    const std::size_t count = 1 + random() % 4;
    for (std::size_t i = 0; i < count; ++i) chosen.push_back(pieces[random() % pieces.size()]);
    CAPTURE(joined(chosen));
    ConfigurationSources sources;
    sources.preset("bytes");
    try {
      for (const std::string& assignment : chosen) {
        if (random() % 3 != 0) {
          sources.assignment(assignment);
        } else {
          const std::size_t equals = assignment.find('=');
          sources.flag(assignment.substr(0, equals), assignment.substr(equals + 1), "--flag");
        }
      }
      const ResolvedConfiguration resolved = sources.resolve();
      ++accepted;
      CHECK_NOTHROW(check(resolved.configuration));
      for (const std::string& note : resolved.notes) CHECK(begins_with_id(note));
      const ResolvedConfiguration again =
          ConfigurationSources().json(to_json(resolved.configuration), "printed").resolve();
      CHECK(again.configuration == resolved.configuration);
      CHECK(to_json(again.configuration) == to_json(resolved.configuration));
    } catch (const ConfigurationError& error) {
      CHECK_MESSAGE(begins_with_id(error.what()), error.what());
      refused_by.insert(std::string(error.what()).substr(0, 4));
    }
  }
  CHECK(accepted > 1000);
  CHECK(accepted < 3500);
  CHECK(refused_by.size() >= 14);
}
