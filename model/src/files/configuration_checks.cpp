// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/files/graph_rules.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "configuration_table.hpp"

namespace encore::model {
namespace {

/// Every number of a section within its own range: what is built by hand has not gone through the parser.
void check_ranges(const Configuration& configuration, std::string_view section) {
  for (const Key& key : key_table())
    if (key.name.starts_with(section)) check_value(key, key.read(configuration), {});
}

[[noreturn]] void refuse(const std::string& sentence) { throw ConfigurationError(sentence); }

void check_gpt2(const ModelConfiguration& model) {
  if (model.kv_heads != model.heads)
    refuse(fmt::format("model.kv_heads = {} must equal model.heads = {} in the family gpt2", model.kv_heads,
                       model.heads));
  if (model.heads * model.head_dim != model.hidden)
    refuse(
        fmt::format("model.heads = {} times model.head_dim = {} must be model.hidden = {} in the family gpt2",
                    model.heads, model.head_dim, model.hidden));
  if (model.normalization != Normalization::layer_norm)
    refuse("model.normalization must be layer_norm in the family gpt2");
  if (model.position != Position::learned) refuse("model.position must be learned in the family gpt2");
  if (model.activation == Activation::swiglu)
    refuse("model.activation must be gelu or gelu_tanh in the family gpt2");
  if (!model.qkv_bias || !model.attention_output_bias || !model.mlp_bias)
    refuse(
        "model.qkv_bias, model.attention_output_bias and model.mlp_bias must be true in the family gpt2: its "
        "checkpoints hold every bias");
}

void check_llama(const ModelConfiguration& model) {
  if (model.normalization != Normalization::rms_norm)
    refuse("model.normalization must be rms_norm in the family llama");
  if (model.activation != Activation::swiglu) refuse("model.activation must be swiglu in the family llama");
  if (model.position == Position::learned)
    refuse("model.position must be rope_half_split or rope_interleaved in the family llama");
  if (model.head_dim % 2 != 0)
    refuse(fmt::format("model.head_dim = {} must be even: rotary positions turn pairs", model.head_dim));
}

void check_train(const Configuration& configuration) {
  const TrainConfiguration& train = configuration.train;
  if (train.seq > configuration.model.seq)
    refuse(fmt::format("train.seq = {} must not exceed model.seq = {}", train.seq, configuration.model.seq));
  if (train.microbatch * train.seq > std::numeric_limits<std::int32_t>::max())
    refuse(fmt::format(
        "train.microbatch = {} times train.seq = {} must be below 2^31 tokens: use more microbatches",
        train.microbatch, train.seq));
  // A step is a list of segments, a few for every layer of every microbatch: some 16 KiB of host memory each time.
  constexpr std::int64_t most_passes = 100'000;
  if (configuration.model.layers * train.microbatches > most_passes)
    refuse(fmt::format(
        "train.microbatches = {} times model.layers = {} must be at most {}: use larger microbatches",
        train.microbatches, configuration.model.layers, most_passes));
  if (train.min_lr > train.lr)
    refuse(fmt::format("train.min_lr = {} must not exceed train.lr = {}", train.min_lr, train.lr));
  if (train.lr_decay_steps != 0 && train.lr_decay_steps < train.lr_warmup_steps)
    refuse(fmt::format("train.lr_decay_steps = {} must be 0 or at least train.lr_warmup_steps = {}",
                       train.lr_decay_steps, train.lr_warmup_steps));
  if (train.precision == Precision::fp32 && train.gradient_type == Precision::bf16)
    refuse("train.gradient_type = bf16 needs train.precision = bf16");
  if (train.precision == Precision::fp32 && train.master_weights)
    refuse("train.master_weights = true needs train.precision = bf16: fp32 weights are their own master");
}

bool holds(const GraphConfiguration& graph, GraphModule module) {
  return std::ranges::find(graph.modules, module) != graph.modules.end();
}

void check_modules(const GraphConfiguration& graph) {
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
  if (holds(graph, GraphModule::moe) || router) refuse(GraphRule::moe_without_experts, shown);
  if (holds(graph, GraphModule::mamba)) refuse(GraphRule::mamba_without_layers, shown);
}

void check_recompute(const TrainConfiguration& train) {
  const auto& modules = train.recompute;
  if (modules.size() < 2 || std::ranges::find(modules, RecomputeModule::full) == modules.end()) return;
  std::vector<std::string_view> names;
  for (const RecomputeModule module : modules) names.push_back(name_of(module));
  refuse(GraphRule::full_beside_recompute_modules,
         fmt::format("train.recompute = {}", fmt::join(names, ",")));
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

void check_graph(const GraphConfiguration& graph) {
  check_modules(graph);
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

std::int64_t parameter_count(const ModelConfiguration& model) {
  const bool layer_norm = model.normalization == Normalization::layer_norm;
  const std::int64_t norm = (layer_norm ? 2 : 1) * model.hidden;
  const std::int64_t query = model.heads * model.head_dim;
  const std::int64_t qkv = query + 2 * model.kv_heads * model.head_dim;
  const std::int64_t attention = model.hidden * qkv + (model.qkv_bias ? qkv : 0) + query * model.hidden +
                                 (model.attention_output_bias ? model.hidden : 0);
  const std::int64_t inner = (model.activation == Activation::swiglu ? 2 : 1) * model.ffn;
  const std::int64_t mlp =
      model.hidden * inner + model.ffn * model.hidden + (model.mlp_bias ? inner + model.hidden : 0);
  const std::int64_t embedding = model.vocab * model.hidden;
  return (model.tie_embeddings ? 1 : 2) * embedding +
         (model.position == Position::learned ? model.seq * model.hidden : 0) +
         model.layers * (2 * norm + attention + mlp) + norm;
}

void check(const ModelConfiguration& model) {
  Configuration configuration;
  configuration.model = model;
  check_ranges(configuration, "model.");
  if (model.heads % model.kv_heads != 0)
    refuse(fmt::format("model.heads = {} must be a multiple of model.kv_heads = {}", model.heads,
                       model.kv_heads));
  constexpr std::int64_t widest = 1 << 22;
  if (model.heads * model.head_dim > widest)
    refuse(fmt::format("model.heads = {} times model.head_dim = {} must be at most {}", model.heads,
                       model.head_dim, widest));
  if (model.family == "gpt2") {
    check_gpt2(model);
  } else {
    check_llama(model);
  }
  // What was checked so far keeps the count itself below 2^63.
  constexpr std::int64_t most_parameters = 10'000'000'000'000;
  if (const std::int64_t parameters = parameter_count(model); parameters > most_parameters)
    refuse(
        fmt::format("the model would have {:.3g} parameters, more than the {:.0e} that make sense: check "
                    "model.layers = {}, model.hidden = {}, model.ffn = {} and model.vocab = {}",
                    static_cast<double>(parameters), static_cast<double>(most_parameters), model.layers,
                    model.hidden, model.ffn, model.vocab));
}

void check(const Configuration& configuration) {
  check(configuration.model);
  check_ranges(configuration, {});
  check_train(configuration);
  check_recompute(configuration.train);
  check_pipeline(configuration);
  check_graph(configuration.graph);
  check_buckets(configuration);
}

}  // namespace encore::model
