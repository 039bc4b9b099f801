// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/graph_rules.hpp>
#include <encore/model/files/rank_layout.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "configuration_checks.hpp"
#include "configuration_table.hpp"

namespace encore::model {
namespace {

bool holds(const GraphConfiguration& graph, GraphModule module) {
  return std::ranges::find(graph.modules, module) != graph.modules.end();
}

/// The part of a layer that a module records.
Block block_of(GraphModule module) {
  switch (module) {
    case GraphModule::attn: return Block::attention;
    case GraphModule::mlp: return Block::mlp;
    case GraphModule::mamba: return Block::mamba;
    default: return Block::experts;
  }
}

Block block_of(RecomputeModule module) {
  switch (module) {
    case RecomputeModule::attn: return Block::attention;
    case RecomputeModule::mlp: return Block::mlp;
    case RecomputeModule::mamba: return Block::mamba;
    default: return Block::experts;
  }
}

bool has_part(const ModelConfiguration& model, Block block) {
  return block == Block::attention ? has_attention(model) : has_block(model, block);
}

void check_modules(const Configuration& configuration) {
  const GraphConfiguration& graph = configuration.graph;
  if (graph.modules.empty()) return;
  std::vector<std::string_view> names;
  for (const GraphModule module : graph.modules) names.push_back(name_of(module));
  const std::string shown = fmt::format("graph.modules = {}", fmt::join(names, ","));
  if (graph.impl != GraphImplementation::layer)
    refuse(GraphRule::modules_without_layer,
           fmt::format("{} with graph.impl = {}", shown, name_of(graph.impl)));
  const bool router = holds(graph, GraphModule::moe_router);
  if (holds(graph, GraphModule::moe) && router) refuse(GraphRule::moe_beside_router, shown);
  if (holds(graph, GraphModule::moe_preprocess) && !router)
    refuse(GraphRule::preprocess_without_router, shown);
  for (const GraphModule module : graph.modules) {
    const Block block = block_of(module);
    if (has_part(configuration.model, block)) continue;
    refuse(block == Block::experts ? GraphRule::moe_without_experts
           : block == Block::mamba ? GraphRule::mamba_without_layers
                                   : GraphRule::module_without_layers,
           shown);
  }
}

void check_recompute(const Configuration& configuration) {
  const auto& modules = configuration.train.recompute;
  std::vector<std::string_view> names;
  for (const RecomputeModule module : modules) names.push_back(name_of(module));
  const std::string shown = fmt::format("train.recompute = {}", fmt::join(names, ","));
  const bool full = std::ranges::find(modules, RecomputeModule::full) != modules.end();
  if (full && modules.size() > 1) refuse(GraphRule::full_beside_recompute_modules, shown);
  if (full) return;
  for (const RecomputeModule module : modules)
    if (!has_part(configuration.model, block_of(module))) refuse(GraphRule::recompute_without_layers, shown);
}

/// 0 is what such a model does in any case.
void check_bias_rate(const Configuration& configuration) {
  const double rate = configuration.train.expert_bias_rate;
  if (configuration.model.expert_bias || rate == 0 || rate == TrainConfiguration{}.expert_bias_rate) return;
  refuse(GraphRule::expert_options_without_experts,
         fmt::format("train.expert_bias_rate = {} with model.expert_bias = false", rate));
}

void check_experts(const Configuration& configuration) {
  const TrainConfiguration& train = configuration.train;
  if (train.expert_capacity > 0 && train.expert_budget != 1)
    refuse(GraphRule::capacity_beside_budget,
           fmt::format("train.expert_capacity = {} with train.expert_budget = {}", train.expert_capacity,
                       train.expert_budget));
  check_bias_rate(configuration);
  if (has_block(configuration.model, Block::experts)) return;
  for (const std::string_view name : {"train.balance_loss", "train.router_z_loss", "train.router_jitter",
                                      "train.expert_capacity", "train.expert_budget"}) {
    const Key& key = *find_key(name);
    if (const Value value = key.read(configuration); value != neutral_value(key))
      refuse(GraphRule::expert_options_without_experts, fmt::format("{} = {}", name, value_text(value)));
  }
}

void check_pipeline(const Configuration& configuration) {
  const ParallelConfiguration& parallel = configuration.parallel;
  const std::string shown = fmt::format("parallel.pipeline = {} and parallel.virtual_stages = {}",
                                        parallel.pipeline, parallel.virtual_stages);
  if (parallel.virtual_stages > 1 && parallel.pipeline == 1)
    refuse(GraphRule::virtual_stages_without_pipeline, shown);
  if (configuration.model.layers % (parallel.pipeline * parallel.virtual_stages) != 0)
    refuse(GraphRule::layers_not_divided,
           fmt::format("model.layers = {} with {}", configuration.model.layers, shown));
  if (parallel.virtual_stages > 1 && configuration.train.microbatches % parallel.pipeline != 0)
    refuse(GraphRule::microbatches_not_divided,
           fmt::format("train.microbatches = {} with {}", configuration.train.microbatches, shown));
}

/// Everything that is dealt out must come out even; the vocabulary alone need not, if each rank gets some of it.
void check_ranks(const Configuration& configuration) {
  const ModelConfiguration& model = configuration.model;
  const TrainConfiguration& train = configuration.train;
  const ParallelConfiguration& parallel = configuration.parallel;
  const auto require_even = [&](std::string_view key, std::int64_t ranks, std::string_view what,
                                std::int64_t size) {
    if (size % ranks != 0)
      refuse(GraphRule::not_dealt_out, fmt::format("{} = {} with {} = {}", key, ranks, what, size));
  };
  const std::pair<const char*, std::int64_t> of_layers[] = {
      {"model.heads", model.heads},
      {"model.kv_heads", model.kv_heads},
      {"model.ffn", model.ffn},
      {"model.expert_ffn", model.expert_ffn},
      {"model.shared_ffn", model.shared_ffn},
      {"model.mamba_heads", model.mamba_heads},
      {"model.mamba_groups", has_block(model, Block::mamba) ? model.mamba_groups : 0},
      {"model.mamba_norm_groups", has_block(model, Block::mamba) ? model.mamba_norm_groups : 0}};
  for (const auto& [what, size] : of_layers) require_even("parallel.tensor", parallel.tensor, what, size);
  if (share_of(model.vocab, parallel.tensor, parallel.tensor - 1).size() <= 0)
    refuse(GraphRule::not_dealt_out,
           fmt::format("parallel.tensor = {} with model.vocab = {}", parallel.tensor, model.vocab));
  if (parallel.sequence)
    require_even("parallel.tensor", parallel.tensor, "parallel.sequence and train.microbatch * train.seq",
                 train.microbatch * train.seq);
  require_even("parallel.expert", parallel.expert, "parallel.data", parallel.data);
  if (parallel.expert > 1 && !has_block(model, Block::experts))
    refuse(GraphRule::not_dealt_out,
           fmt::format("parallel.expert = {} for a model without experts", parallel.expert));
  require_even("parallel.expert", parallel.expert, "model.experts", model.experts);
  if (train.tune_products == ProductTuning::on && parallel.tensor > 1 && has_block(model, Block::experts))
    refuse(GraphRule::tuned_experts_on_tensor_ranks,
           fmt::format("train.tune_products = on with parallel.tensor = {}", parallel.tensor));
}

void check_graph(const Configuration& configuration) {
  check_modules(configuration);
  const GraphConfiguration& graph = configuration.graph;
  const std::string optimizer =
      fmt::format("graph.optimizer = {} with graph.impl = {}", name_of(graph.optimizer), name_of(graph.impl));
  if (graph.impl != GraphImplementation::full_iteration && graph.optimizer == OptimizerPlacement::joined)
    refuse(GraphRule::joined_without_full_iteration, optimizer);
  if (graph.impl == GraphImplementation::none && graph.optimizer == OptimizerPlacement::separate)
    refuse(GraphRule::separate_without_graphs, optimizer);
}

void check_buckets(const Configuration& configuration) {
  const GraphConfiguration& graph = configuration.graph;
  if (graph.buckets.empty()) return;
  if (graph.buckets.back() > configuration.train.seq)
    refuse(GraphRule::bucket_beyond_sequence,
           fmt::format("graph.buckets = {} with train.seq = {}", fmt::join(graph.buckets, ","),
                       configuration.train.seq));
  if (std::ssize(graph.buckets) > graph.recordings)
    refuse(GraphRule::buckets_beyond_recordings,
           fmt::format("graph.buckets = {} with graph.recordings = {}", fmt::join(graph.buckets, ","),
                       graph.recordings));
}

}  // namespace

void check_rules(const Configuration& configuration) {
  check_recompute(configuration);
  check_experts(configuration);
  check_pipeline(configuration);
  check_ranks(configuration);
  check_graph(configuration);
  check_buckets(configuration);
}

}  // namespace encore::model
