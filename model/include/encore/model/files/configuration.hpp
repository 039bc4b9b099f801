// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace encore::model {

enum class Normalization { layer_norm, rms_norm };
enum class Activation {
  gelu,            ///< x * Phi(x), with the exact normal distribution
  gelu_tanh,       ///< its approximation by tanh (`gelu_new` of Hugging Face)
  swiglu,          ///< silu(gate) * up, two projections
  swiglu_clamped,  ///< gate * sigmoid(1.702 gate) * (up + 1), both clamped to `swiglu_limit`: GPT-OSS
  relu_squared     ///< max(x, 0)^2: Nemotron-H
};
/// Whether there is a second projection into the inner width, which is multiplied by the first.
constexpr bool is_gated(Activation activation) noexcept {
  return activation == Activation::swiglu || activation == Activation::swiglu_clamped;
}
enum class Position {
  learned,
  rope_half_split,   ///< pairs (i, i + head_dim / 2), as Llama
  rope_interleaved,  ///< pairs (2 i, 2 i + 1)
  none               ///< order enters by the causal mask, or by Mamba layers
};
/// A part of a layer, with its own normalization, whose result is added to the residual stream.
enum class Block {
  mamba,               ///< `M` in a pattern
  attention,           ///< `*`
  windowed_attention,  ///< `~`: of the last `sliding_window` positions
  mlp,                 ///< `-`
  experts              ///< `E`
};
/// How router logits become the weights of the chosen experts.
enum class RouterScore {
  softmax,             ///< over all experts, then the largest are taken
  softmax_of_largest,  ///< over the largest alone
  sigmoid              ///< of each logit
};
enum class Precision { fp32, bf16 };
enum class BackendKind { serial, openmp, cuda };
enum class GraphImplementation { none, layer, full_iteration };
/// How tokens come to experts of other ranks: each choice to its expert's rank, or every token to every rank.
enum class ExpertDispatch { all_to_all, all_gather };
enum class GraphModule { attn, mlp, moe, moe_router, moe_preprocess, mamba };
enum class RecomputeModule {
  attn,
  mlp,
  moe,  ///< of experts, what comes after the router's decision
  mamba,
  full  ///< whole layers: only each layer's input is kept
};
enum class OptimizerPlacement {
  separate,  ///< a run of its own, recorded apart
  joined,    ///< part of the full iteration's run
  eager      ///< never recorded
};
/// Whether the algorithms of matrix products are picked by measurement.
enum class ProductTuning { off, on };
/// What a sequence longer than the largest recorded length gets.
enum class AboveLargest { eager, refuse };

/// The name that configuration files use.
std::string_view name_of(Normalization value) noexcept;
std::string_view name_of(Activation value) noexcept;
std::string_view name_of(Position value) noexcept;
std::string_view name_of(RouterScore value) noexcept;
std::string_view name_of(Precision value) noexcept;
std::string_view name_of(BackendKind value) noexcept;
std::string_view name_of(GraphImplementation value) noexcept;
std::string_view name_of(ExpertDispatch value) noexcept;
std::string_view name_of(GraphModule value) noexcept;
std::string_view name_of(RecomputeModule value) noexcept;
std::string_view name_of(OptimizerPlacement value) noexcept;
std::string_view name_of(AboveLargest value) noexcept;
std::string_view name_of(ProductTuning value) noexcept;

// What the numbers mean, their ranges and their defaults stand in one table: `configuration_keys()` in
// configuration_sources.hpp. The initial values here are those defaults, where a default depends on nothing
// else.

/// The shape of a model and what its forward pass computes.
struct ModelConfiguration {
  std::string family;  ///< such as `llama`: decides tensor names and the defaults of what follows
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t seq = 0;  ///< most positions
  Normalization normalization = Normalization::rms_norm;
  Activation activation = Activation::swiglu;
  Position position = Position::rope_half_split;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool tie_embeddings = false;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  double dropout = 0;  ///< after the embedding and on both residual branches
  double attention_dropout = 0;
  double initializer_range = 0.02;
  /// The blocks of one layer after the other, a letter each, or a stretch of them that repeats.
  std::string pattern;
  std::int64_t sliding_window = 0;  ///< positions that a windowed attention sees, its own among them
  bool query_key_norm = false;      ///< RMS norm of each head's query and key, before the rotation
  bool attention_sinks = false;     ///< a learned logit a head that takes part in the softmax alone
  double swiglu_limit = 7;
  // Peng et al., "YaRN", 2023; factor 1: plain rotary frequencies.
  double rope_factor = 1;
  std::int64_t rope_original_seq = 0;  ///< positions before the extension
  double rope_beta_fast = 32;
  double rope_beta_slow = 1;
  double rope_attention_factor = 0;  ///< scales cosine and sine; 0: 0.1 * ln(factor) + 1
  bool rope_truncate = true;         ///< whether the ramp's ends are whole dimensions
  std::int64_t experts = 0;
  std::int64_t topk = 0;        ///< experts of a token
  std::int64_t expert_ffn = 0;  ///< inner width of an expert
  std::int64_t shared_ffn = 0;  ///< of the expert that every token goes through; 0: none
  RouterScore router_score = RouterScore::softmax;
  bool router_renormalize = true;       ///< the chosen experts' weights sum to 1
  bool router_bias = false;             ///< of the router's projection
  bool expert_bias = false;             ///< a bias for the choice alone that balances the load
  std::int64_t router_groups = 1;       ///< of experts
  std::int64_t router_topk_groups = 1;  ///< of which a token's experts are taken
  double router_scale = 1;              ///< of the chosen experts' weights
  std::int64_t mamba_heads = 0;
  std::int64_t mamba_head_dim = 0;
  std::int64_t mamba_state = 0;   ///< width of a head's state
  std::int64_t mamba_groups = 1;  ///< of heads with the same B and C
  std::int64_t mamba_convolution = 4;
  std::int64_t mamba_chunk = 256;
  std::int64_t mamba_norm_groups = 1;  ///< of channels that are normalized together
  bool mamba_bias = false;             ///< of the projections in and out
  bool mamba_convolution_bias = true;
  double mamba_step_minimum = 0;  ///< bounds of the time step after softplus
  double mamba_step_maximum = 0;  ///< 0: none

  friend bool operator==(const ModelConfiguration&, const ModelConfiguration&) = default;
};

struct TrainConfiguration {
  std::int64_t steps = 100;
  std::int64_t microbatch = 1;    ///< sequences
  std::int64_t microbatches = 1;  ///< accumulated into one step
  std::int64_t seq = 0;           ///< tokens of a training sequence
  double lr = 3e-4;
  double min_lr = 3e-4;
  std::int64_t lr_warmup_steps = 0;
  std::int64_t lr_decay_steps = 0;  ///< 0: all steps
  double weight_decay = 0.1;
  bool decay_all = false;  ///< weight decay on biases and normalization weights too
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip = 1;        ///< largest norm of the gradient; 0: any
  double skip_above = 0;  ///< norm above which a step updates nothing; 0: never
  Precision precision = Precision::fp32;
  Precision gradient_type = Precision::fp32;
  Precision optimizer_state = Precision::fp32;
  bool master_weights = false;
  std::int64_t checkpoint_interval = 0;  ///< steps; 0: only after the last
  /// What backward computes again instead of keeping it. Each once, in the order of the enumeration; `full`
  /// alone.
  std::vector<RecomputeModule> recompute;
  double balance_loss = 0;         ///< coefficient of the loss that balances the experts' load
  double router_z_loss = 0;        ///< coefficient of the squared log-sum-exp of the router's logits
  double router_jitter = 0;        ///< the router's input is multiplied by a number from 1 - this to 1 + this
  double expert_bias_rate = 1e-3;  ///< how far a step moves an expert's bias
  double expert_capacity = 0;      ///< 0: no token is dropped; else an expert takes this times its even share
  double expert_budget = 1;        ///< rows kept for the experts, relative to topk rows a token
  ProductTuning tune_products = ProductTuning::off;
  std::string tuning_cache;  ///< file of the picked algorithms; empty: they are not kept
  bool delay_wgrad = false;  ///< weight gradients of attn and mlp after all input gradients of a chunk

  friend bool operator==(const TrainConfiguration&, const TrainConfiguration&) = default;
};

struct GraphConfiguration {
  GraphImplementation impl = GraphImplementation::full_iteration;
  std::vector<GraphModule>
      modules;  ///< for `layer`; empty: whole layers. Each once, in the order of the enumeration
  OptimizerPlacement optimizer = OptimizerPlacement::joined;
  std::int64_t warmup_steps = 3;
  std::int64_t validate_every = 0;    ///< steps; 0: never
  std::int64_t memory_limit = 0;      ///< bytes; 0: none
  bool recapture = false;             ///< instead of an error where the replay contract is broken
  std::vector<std::int64_t> buckets;  ///< sequence lengths, rising; empty: each length as it comes
  AboveLargest above_largest = AboveLargest::eager;
  std::int64_t recordings = 8;  ///< most lengths that are recorded
  bool checksums = false;       ///< at the boundary of every segment

  friend bool operator==(const GraphConfiguration&, const GraphConfiguration&) = default;
};

struct ParallelConfiguration {
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  bool sequence = false;    ///< between the parts of layers that tensor ranks share, each has its own tokens
  std::int64_t expert = 1;  ///< of the data ranks, those that share the experts
  ExpertDispatch expert_dispatch = ExpertDispatch::all_to_all;
  bool shard_optimizer = false;  ///< each data rank keeps its part of the optimizer's state (ZeRO, stage 1)
  std::int64_t pipeline = 1;
  std::int64_t virtual_stages = 1;  ///< chunks of each pipeline stage

  friend bool operator==(const ParallelConfiguration&, const ParallelConfiguration&) = default;
};

struct Configuration {
  ModelConfiguration model;
  TrainConfiguration train;
  GraphConfiguration graph;
  ParallelConfiguration parallel;
  BackendKind backend = BackendKind::openmp;
  std::int64_t seed = 1;

  friend bool operator==(const Configuration&, const Configuration&) = default;
};

/// Whether layers have one block each; otherwise attention and then an MLP or experts.
bool has_single_blocks(const ModelConfiguration& model);
/// The blocks of every layer. The model must be checked.
std::vector<std::vector<Block>> blocks_of_layers(const ModelConfiguration& model);
/// Whether some layer has it. Of the model, `family`, `layers` and `pattern` must be checked.
bool has_block(const ModelConfiguration& model, Block block);
/// Attention of either kind.
bool has_attention(const ModelConfiguration& model);

/// Weights and biases of the whole model; tied embeddings count once.
std::int64_t parameter_count(const ModelConfiguration& model);

/// Throws ConfigurationError, with the key, the value and what would be allowed, unless the model is one that
/// this version computes: every number in its range and every combination possible.
void check(const ModelConfiguration& model);
void check(const Configuration& configuration);

}  // namespace encore::model
