// SPDX-License-Identifier: Apache-2.0
#include "graph_rule_cases.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>

using namespace encore::model;
using encore::ConfigurationError;

ConfigurationSources sources_of(const Assignments& assignments) {
  ConfigurationSources sources;
  sources.preset("bytes");
  for (const std::string& assignment : assignments) sources.assignment(assignment);
  return sources;
}

Assignments hybrid(const Assignments& assignments) {
  Assignments all = {"model.family=nemotron_h", "model.pattern=M*M-E", "model.layers=5", "model.experts=4"};
  all.insert(all.end(), assignments.begin(), assignments.end());
  return all;
}

std::string joined(const Assignments& assignments) {
  std::string text;
  for (const std::string& assignment : assignments) text += assignment + " ";
  return text;
}

std::string refusal_of(const Assignments& assignments) {
  try {
    sources_of(assignments).resolve();
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return {};
}

bool begins_with_id(const std::string& sentence) {
  return std::ranges::any_of(graph_rules(), [&sentence](const Rule& rule) {
    return sentence.starts_with(std::string(rule.id) + ": ");
  });
}

const std::vector<RuleCase>& refused_cases() {
  using enum GraphRule;
  static const std::vector<RuleCase> cases = {
      {unknown_implementation,
       {"graph.impl=cuda"},
       {{"graph.impl=none"}, {"graph.impl=layer"}, {"graph.impl=full_iteration"}}},
      {unknown_implementation,
       {"cuda_graph_impl=te"},
       {{"cuda_graph_impl=none"},
        {"cuda_graph_impl=local"},
        {"cuda_graph_impl=transformer_engine"},
        {"cuda_graph_impl=full_iteration"}}},
      {modules_without_layer, {"graph.modules=attn"}, {{"graph.impl=layer", "graph.modules=attn"}, {}}},
      {modules_without_layer,
       {"graph.impl=full_iteration", "graph.modules=mlp"},
       {{"graph.impl=layer", "graph.modules=mlp"}, {"graph.impl=full_iteration"}}},
      {modules_without_layer,
       {"cuda_graph_impl=full_iteration", "cuda_graph_scope=attn"},
       {{"cuda_graph_impl=full_iteration"}, {"cuda_graph_impl=local", "cuda_graph_scope=attn"}}},
      {full_beside_modules,
       {"cuda_graph_impl=local", "cuda_graph_scope=full,attn"},
       {{"cuda_graph_impl=local", "cuda_graph_scope=full"},
        {"cuda_graph_impl=local", "cuda_graph_scope=attn"}}},
      {full_iteration_of_transformer_engine,
       {"cuda_graph_impl=transformer_engine", "cuda_graph_scope=full_iteration"},
       {{"cuda_graph_impl=full_iteration"}}},
      {inference_scope,
       {"cuda_graph_impl=local", "inference_cuda_graph_scope=block"},
       {{"cuda_graph_impl=local"}, {"cuda_graph_impl=local", "inference_cuda_graph_scope=none"}}},
      {inference_scope, {"cuda_graph_scope=full_iteration_inference"}, {{}}},
      {inference_scope,
       {"cuda_graph_scope=full_iteration", "inference_cuda_graph_scope=layer"},
       {{"cuda_graph_scope=full_iteration"}}},
      {full_iteration_beside_modules,
       {"cuda_graph_impl=local", "cuda_graph_modules=attn,full_iteration"},
       {{"cuda_graph_impl=local", "cuda_graph_modules=full_iteration"},
        {"cuda_graph_impl=local", "cuda_graph_modules=attn"}}},
      {full_iteration_beside_modules,
       {"cuda_graph_scope=full_iteration,full_iteration_inference"},
       {{"cuda_graph_scope=full_iteration"}}},
      {two_forms,
       {"cuda_graph_impl=local", "cuda_graph_scope=attn", "cuda_graph_modules=attn"},
       {{"cuda_graph_impl=local", "cuda_graph_scope=attn"},
        {"cuda_graph_impl=local", "cuda_graph_modules=attn"}}},
      {two_forms,
       {"cuda_graph_impl=local", "graph.impl=layer"},
       {{"cuda_graph_impl=local"}, {"graph.impl=layer"}}},
      {two_forms,
       {"cuda_graph_impl=local", "cuda_graph_scope=attn", "graph.modules=attn"},
       {{"cuda_graph_impl=local", "cuda_graph_scope=attn"}}},
      {two_forms,
       {"cuda_graph_warmup_steps=2", "graph.warmup_steps=2"},
       {{"cuda_graph_warmup_steps=2"}, {"graph.warmup_steps=2"}}},
      {legacy_flag_beside_implementation,
       {"enable_cuda_graph=true", "external_cuda_graph=true"},
       {{"enable_cuda_graph=true"},
        {"external_cuda_graph=true"},
        {"enable_cuda_graph=true", "external_cuda_graph=false"}}},
      {legacy_flag_beside_implementation,
       {"external_cuda_graph=true", "cuda_graph_impl=transformer_engine"},
       {{"external_cuda_graph=true"}, {"cuda_graph_impl=transformer_engine"}}},
      {legacy_flag_beside_implementation,
       {"enable_cuda_graph=true", "graph.impl=layer"},
       {{"enable_cuda_graph=true"}, {"graph.impl=layer"}}},
      {modules_without_implementation,
       {"cuda_graph_modules=attn"},
       {{"cuda_graph_modules=attn", "cuda_graph_impl=transformer_engine"}}},
      {repeated_module,
       {"graph.impl=layer", "graph.modules=attn,mlp,attn"},
       {{"graph.impl=layer", "graph.modules=attn,mlp"}}},
      {unknown_module,
       {"graph.impl=layer", "graph.modules=atn"},
       {{"graph.impl=layer", "graph.modules=attn"}}},
      {unknown_module,
       {"cuda_graph_impl=local", "cuda_graph_scope=attention"},
       {{"cuda_graph_impl=local", "cuda_graph_scope=attn"}}},
      {moe_beside_router,
       hybrid({"graph.impl=layer", "graph.modules=moe,moe_router"}),
       {hybrid({"graph.impl=layer", "graph.modules=moe"}),
        hybrid({"graph.impl=layer", "graph.modules=moe_router"})}},
      {preprocess_without_router,
       hybrid({"graph.impl=layer", "graph.modules=moe_preprocess,attn"}),
       {hybrid({"graph.impl=layer", "graph.modules=moe_preprocess,moe_router,attn"}),
        hybrid({"graph.impl=layer", "graph.modules=attn"})}},
      {moe_without_experts,
       {"graph.impl=layer", "graph.modules=moe"},
       {{"graph.impl=layer", "graph.modules="}}},
      {moe_without_experts,
       {"graph.impl=layer", "graph.modules=moe_preprocess,moe_router,attn"},
       {{"graph.impl=layer", "graph.modules=attn"}}},
      {mamba_without_layers,
       {"cuda_graph_impl=transformer_engine", "cuda_graph_modules=mamba,mlp"},
       {{"cuda_graph_impl=transformer_engine", "cuda_graph_modules=mlp"},
        hybrid({"cuda_graph_impl=transformer_engine", "cuda_graph_modules=mamba,mlp"})}},
      {joined_without_full_iteration,
       {"graph.impl=layer", "graph.optimizer=joined"},
       {{"graph.impl=layer", "graph.optimizer=separate"},
        {"graph.impl=layer", "graph.optimizer=eager"},
        {"graph.impl=full_iteration", "graph.optimizer=joined"}}},
      {joined_without_full_iteration,
       {"graph.impl=none", "graph.optimizer=joined"},
       {{"graph.impl=none", "graph.optimizer=eager"}}},
      {separate_without_graphs,
       {"graph.impl=none", "graph.optimizer=separate"},
       {{"graph.impl=none", "graph.optimizer=eager"}, {"graph.impl=none"}}},
      {not_dealt_out, {"parallel.tensor=5"}, {{"parallel.tensor=1"}}},
      {not_dealt_out, {"parallel.data=2", "parallel.expert=2"}, {{"parallel.data=2", "parallel.expert=1"}}},
      {bucket_beyond_sequence,
       {"train.seq=64", "graph.buckets=32,65"},
       {{"train.seq=64", "graph.buckets=32"}, {"train.seq=65", "graph.buckets=32,65"}}},
      {buckets_beyond_recordings,
       {"graph.buckets=8,16,32", "graph.recordings=2"},
       {{"graph.buckets=8,16,32", "graph.recordings=3"}, {"graph.buckets=8,16", "graph.recordings=2"}}},
  };
  return cases;
}
