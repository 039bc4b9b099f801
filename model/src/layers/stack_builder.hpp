// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/program.hpp>
#include <encore/kernels/rope.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>
#include <encore/model/step_program.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace encore::model {

using graph::Buffer;
using graph::BufferId;
using graph::BufferKind;
using graph::Execution;
using graph::Module;
using graph::Phase;
using graph::Segment;

template <class T>
using Accumulator = backend::Accumulator<T>;

inline bool has_rotation(const ModelConfiguration& model) {
  return model.position == Position::rope_half_split || model.position == Position::rope_interleaved;
}

/// A parameter and, when training, its gradient.
struct ParameterBuffers {
  BufferId value;
  std::optional<BufferId> gradient;
};

/// A normalization layer. Without bias it is RMSNorm, with bias LayerNorm.
struct NormBuffers {
  ParameterBuffers weight;
  std::optional<ParameterBuffers> bias;
};

/// A linear layer. The weight is stored [outputs, inputs], or [inputs, outputs] in GPT-2.
struct LinearBuffers {
  ParameterBuffers weight;
  std::optional<ParameterBuffers> bias;
  bool inputs_first;
};

/// The gradient of a linear layer's weight and bias, to be computed from its input and its output's gradient.
struct LinearGradient {
  const char* label;
  LinearBuffers linear;
  BufferId input;
  BufferId output_gradient;
  std::optional<BufferId> workspace;  ///< for the bias
  bool accumulate = false;
  bool beside = false;  ///< whatever its size, as ranks communicate meanwhile
};

/// What a normalization saves for its backward pass.
struct NormStatistics {
  std::optional<BufferId> mean;
  BufferId inverse;
};

/// Where a microbatch draws random numbers.
enum class RandomPlace {
  embedding,
  attention,
  attention_result,
  mlp_result,
  mamba_result,
  router_jitter,
  experts_result
};

/// Builds the program of a step. T is the type of weights and activations, G that of gradients.
template <class Space, class T, class G>
class StackBuilder {
 public:
  StackBuilder(backend::Device<Space>& device, const ModelConfiguration& model, const ParameterLayout& layout,
               const StepShape& shape);

  backend::Device<Space>& device;
  const ModelConfiguration& model;
  const ParameterLayout& layout;
  StepShape shape;
  ModelConfiguration local;  ///< the model as this rank has it: its own heads, widths, experts and vocabulary
  StepProgram<Space> step;

  bool training() const { return shape.training; }
  const ModelShard& shard() const { return layout.shard(); }
  /// Whether the step has the collectives of a group.
  bool is_in(RankGroup group) const { return device.is_in(name_of(group)); }
  std::int64_t tokens() const { return shape.sequences * shape.tokens; }  ///< of a microbatch
  /// Of those the ones that this rank has of the residual stream.
  std::int64_t stream_tokens() const {
    return shape.sequence_parallel ? tokens() / shard().layout.tensor() : tokens();
  }
  /// The rows of embedding and head that this rank has.
  Stretch vocabulary() const { return share_of(model.vocab, shard().layout.tensor(), shard().place.tensor); }
  /// The random streams of dropout, as Megatron-Core has them: what tensor ranks have in common they drop alike.
  const char* hidden_random() const { return shape.sequence_parallel ? "model-parallel" : "default"; }
  const char* attention_random() const { return shard().layout.tensor() > 1 ? "model-parallel" : "default"; }
  bool drops() const { return training() && model.dropout > 0; }
  bool drops_attention() const { return training() && model.attention_dropout > 0; }
  bool jitters() const { return training() && shape.experts.jitter; }
  /// How many layers before this one have experts.
  std::int64_t expert_layers_before(std::int64_t layer) const;

  /// Prefix of names that belong to a microbatch.
  std::string prefix(std::int64_t microbatch) const {
    return shape.microbatches == 1 ? "" : "microbatch." + std::to_string(microbatch) + "/";
  }

  template <class Element>
  BufferId add(const std::string& name, std::vector<std::int64_t> extents,
               BufferKind kind = BufferKind::activation) {
    return step.program.add_buffer({name, backend::data_type_of<Element>, std::move(extents), kind});
  }
  /// Rows of experts, of which as many are used as the router decides.
  template <class Element>
  BufferId add_expert_rows(const std::string& name, std::vector<std::int64_t> extents) {
    return step.program.add_buffer({name, backend::data_type_of<Element>, std::move(extents),
                                    BufferKind::activation, std::nullopt, true});
  }

  ParameterBuffers parameter(const std::string& name);
  NormBuffers norm(const std::string& name);
  LinearBuffers linear(const std::string& name);
  NormStatistics statistics(const std::string& name);
  BufferId scalar(const std::string& name) const;
  /// A number that no other random draw of the program has, whatever the order of the segments.
  std::uint32_t random_segment(std::int64_t microbatch, std::int64_t layer, RandomPlace place) const;

  bool recomputes(RecomputeModule module) const {
    return training() && std::ranges::find(shape.recompute, module) != shape.recompute.end();
  }

  /// Whether the segment that is appended next must add to these gradients (or to the loss): false for the
  /// first of the step, which overwrites them. Call it once a segment and buffer.
  bool accumulates(BufferId id) { return !written_.insert(id).second; }
  bool accumulates(const ParameterBuffers& parameter) { return accumulates(*parameter.gradient); }
  /// The same for a layer whose weight and bias are always written together.
  template <class Layer>
  bool accumulates(const Layer& layer) {
    if (layer.bias) accumulates(*layer.bias);
    return accumulates(layer.weight);
  }

  /// Tells that each tensor rank computes a term of this parameter's gradient alone: all will be summed.
  void add_terms(const ParameterBuffers& parameter) {
    if (is_in(RankGroup::tensor) && std::ranges::find(terms_, *parameter.gradient) == terms_.end())
      terms_.push_back(*parameter.gradient);
  }
  const std::vector<BufferId>& gradient_terms() const { return terms_; }

 private:
  void add_parameters();
  void add_inputs();
  void add_expert_buffers();
  /// Draws of a layer's block of that kind.
  std::int64_t draws_of(Block block) const;

  std::unordered_set<BufferId> written_;
  std::vector<BufferId> terms_;
  std::vector<std::vector<Block>> blocks_;
  std::vector<std::int64_t>
      draws_before_;  ///< of each layer, by the layers before it; behind the last: of all
};

/// Buffers of one attention block in one microbatch, from forward to backward.
struct AttentionBuffers {
  NormBuffers norm;
  LinearBuffers qkv;
  LinearBuffers output;
  std::optional<ParameterBuffers> query_norm, key_norm;  ///< [head_dim]
  std::optional<ParameterBuffers> sinks;                 ///< [heads]
  std::int64_t window = 0;                               ///< positions that a query sees; 0: all
  BufferId input;                                        ///< residual stream before and after the block
  BufferId result;
  BufferId normalized;
  std::optional<BufferId> gathered;  ///< `normalized` of all tokens, where it was computed again for backward
  NormStatistics statistics;
  BufferId projected;                   ///< queries, keys and values; rotated, but for `rotated`
  std::optional<BufferId> rotated;      ///< normalized and rotated queries and keys
  std::optional<BufferId> sink_logits;  ///< the sinks in the attention's own type, where that is not T
  BufferId context;
  BufferId log_sum_exp;
  std::uint32_t attention_dropout_segment = 0;
  std::uint32_t dropout_segment = 0;
};

struct MlpBuffers {
  NormBuffers norm;
  LinearBuffers up;
  LinearBuffers down;
  BufferId input;
  BufferId result;
  BufferId normalized;
  std::optional<BufferId> gathered;  ///< `normalized` of all tokens, where it was computed again for backward
  NormStatistics statistics;
  BufferId raised;     ///< before the activation function
  BufferId activated;  ///< after it
  std::uint32_t dropout_segment = 0;
};

/// Tokens as they come to this rank's experts: its own where it has all experts, else what the ranks that share the
/// experts sent.
struct ExpertTokens {
  std::int64_t count, topk;
  BufferId values;            ///< [count, hidden]
  BufferId experts, weights;  ///< [count, topk], with this rank's numbers of the experts
};

/// Buffers of a block of experts. R rows are kept for the experts, N tokens have K of E experts each.
struct ExpertBuffers {
  NormBuffers norm;
  LinearBuffers router;
  ParameterBuffers up, down;  ///< [E, ...] weights of all experts
  std::optional<ParameterBuffers> up_bias, down_bias;
  std::optional<LinearBuffers> shared_up, shared_down;
  std::optional<BufferId> selection_bias;  ///< [E]
  BufferId live;                           ///< [N]: 0 for padding
  BufferId input;
  BufferId result;
  BufferId normalized;
  NormStatistics statistics;
  std::optional<BufferId> jittered;                                    ///< what the router sees
  BufferId logits;                                                     ///< [N, E]
  BufferId log_sum_exp;                                                ///< [N]
  BufferId weights;                                                    ///< [N, K]
  BufferId experts;                                                    ///< [N, K]
  std::optional<BufferId> tokens_of_expert, probability_sums, totals;  ///< for the router's losses
  std::optional<BufferId> slot_of;  ///< [N, K]: where a choice lies among those that were sent
  std::optional<BufferId> routing;  ///< of what was sent to this rank, as a message
  ExpertTokens arrived;
  BufferId begins, ends;             ///< [E of this rank]
  BufferId source;                   ///< [R]
  BufferId row_of;                   ///< [arrived.count, arrived.topk]
  BufferId rows_needed;              ///< [1]
  BufferId raised;                   ///< [R, ...] before the activation
  BufferId activated;                ///< [R, expert_ffn], weighted
  BufferId outputs;                  ///< [R, hidden], in forward alone
  std::optional<BufferId> returned;  ///< [slots, hidden]: outputs for what this rank sent
  std::optional<BufferId> sum;       ///< [N, hidden]: of a token's outputs, where other ranks add to it
  std::optional<BufferId> shared_raised, shared_activated, shared_result;
  std::int64_t rows = 0;
  std::uint32_t jitter_segment = 0;
  std::uint32_t dropout_segment = 0;
};

/// Buffers of a Mamba-2 block; shapes stand where they are added. Backward only reads them.
struct MambaBuffers {
  NormBuffers norm;
  LinearBuffers in;
  LinearBuffers out;
  ParameterBuffers convolution_weight;  ///< [inner + 2 groups * state, width]
  std::optional<ParameterBuffers> convolution_bias;
  ParameterBuffers step_bias, decay_log, skip;  ///< [mamba_heads]
  ParameterBuffers gate_norm;                   ///< [inner]
  BufferId input;
  BufferId result;
  BufferId normalized;
  std::optional<BufferId> gathered;  ///< `normalized` of all tokens, where it was computed again for backward
  NormStatistics statistics;
  BufferId projected;              ///< gate, x, B, C and raw steps side by side
  BufferId mixed;                  ///< x, B and C behind the convolution
  BufferId steps, decays, states;  ///< kernels::StateSpaceSaved
  BufferId scanned;                ///< what the scan outputs
  BufferId gated;                  ///< normalized and gated
  BufferId gate_inverse;           ///< [tokens, mamba_norm_groups]
  std::uint32_t dropout_segment = 0;
};

struct EmbeddingBuffers {
  ParameterBuffers tokens;
  std::optional<ParameterBuffers> positions;
  BufferId ids;
  BufferId result;
  std::int64_t first_row = 0;       ///< of the vocabulary that this rank's table has
  std::optional<BufferId> order;    ///< of the ids, for backward
  std::optional<BufferId> cleared;  ///< the table's gradient, if forward has to clear it
  std::uint32_t dropout_segment = 0;
};

struct HeadBuffers {
  NormBuffers norm;
  ParameterBuffers weight;  ///< [vocab, hidden], the embedding's when tied
  BufferId input;
  BufferId normalized;
  NormStatistics statistics;
  BufferId gathered;  ///< `normalized` of all tokens
  BufferId logits;    ///< of this rank's vocabulary; becomes the loss gradient when training
};

// One pair a layer kind; each appends the segments of one microbatch. Backward adds into `residual`, the
// gradient of the residual stream, and into parameter gradients unless it is the first to write them.
// Recompute returns the buffers that backward has to use instead of those of forward. Backward returns the
// weight gradients that it left for later.
template <class Space, class T, class G>
EmbeddingBuffers append_embedding_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch);
template <class Space, class T, class G>
void append_embedding_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                               const EmbeddingBuffers& buffers, BufferId residual);
template <class Space, class T, class G>
AttentionBuffers append_attention_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                          std::int64_t layer, BufferId input, std::int64_t window);
template <class Space, class T, class G>
AttentionBuffers append_attention_recompute(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                            std::int64_t layer, const AttentionBuffers& forward,
                                            bool with_result);
template <class Space, class T, class G>
std::vector<LinearGradient> append_attention_backward(StackBuilder<Space, T, G>& builder,
                                                      std::int64_t microbatch, std::int64_t layer,
                                                      const AttentionBuffers& buffers, BufferId residual);
template <class Space, class T, class G>
MlpBuffers append_mlp_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, std::int64_t layer,
                              BufferId input);
template <class Space, class T, class G>
MlpBuffers append_mlp_recompute(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                std::int64_t layer, const MlpBuffers& forward, bool with_result);
template <class Space, class T, class G>
std::vector<LinearGradient> append_mlp_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                                std::int64_t layer, const MlpBuffers& buffers,
                                                BufferId residual);
template <class Space, class T, class G>
MambaBuffers append_mamba_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                  std::int64_t layer, BufferId input);
template <class Space, class T, class G>
MambaBuffers append_mamba_recompute(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                    std::int64_t layer, const MambaBuffers& forward, bool with_result);
template <class Space, class T, class G>
std::vector<LinearGradient> append_mamba_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                                  std::int64_t layer, const MambaBuffers& buffers,
                                                  BufferId residual);
template <class Space, class T, class G>
void append_live_tokens(StackBuilder<Space, T, G>& builder, std::int64_t microbatch);
template <class Space, class T, class G>
ExpertBuffers append_experts_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                     std::int64_t layer, BufferId input);
template <class Space, class T, class G>
ExpertBuffers append_experts_recompute(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                       std::int64_t layer, const ExpertBuffers& forward, bool with_result);
template <class Space, class T, class G>
void append_experts_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, std::int64_t layer,
                             const ExpertBuffers& buffers, BufferId residual);
template <class Space, class T, class G>
void append_weight_gradients(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, std::int64_t layer,
                             Module module, std::vector<LinearGradient> gradients);
template <class Space, class T, class G>
HeadBuffers append_head_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, BufferId input);
template <class Space, class T, class G>
void append_head_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                          const HeadBuffers& buffers, BufferId residual);
template <class Space, class T, class G>
void append_label_count(StackBuilder<Space, T, G>& builder);
template <class Space, class T, class G>
void append_label_count_of_all_ranks(StackBuilder<Space, T, G>& builder);
template <class Space, class T, class G>
void append_metrics_of_all_ranks(StackBuilder<Space, T, G>& builder);
/// Sums each stretch of gradients over the ranks as soon as the last microbatch has completed it. Before the optimizer's
/// segments are there.
template <class Space, class T, class G>
void insert_gradient_reductions(StackBuilder<Space, T, G>& builder);
template <class Space, class T, class G>
void append_optimizer(StackBuilder<Space, T, G>& builder, const StepShape& shape);

}  // namespace encore::model
