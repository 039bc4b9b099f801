// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/program.hpp>
#include <encore/kernels/rope.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace encore::model {

/// What the experts' segments of a step do beside the model itself.
struct ExpertSettings {
  bool balance_loss = false;  ///< whether the gradient has these terms
  bool z_loss = false;
  bool jitter = false;
  double capacity = 0;                                   ///< 0: nothing is dropped
  double budget = 1;                                     ///< rows kept, relative to topk rows a token
  ExpertDispatch dispatch = ExpertDispatch::all_to_all;  ///< among ranks that share the experts
};

/// What a step works on. What this rank has of the model, and with whom it shares the rest, is the parameter layout's
/// shard; collectives are there for the groups that the device is in.
struct StepShape {
  std::int64_t microbatches;  ///< accumulated into one gradient
  std::int64_t sequences;     ///< in a microbatch
  std::int64_t tokens;        ///< in a sequence
  bool training = true;       ///< false: forward only, without dropout, logits kept
  backend::DataType optimizer_state = backend::DataType::float32;
  bool master_weights = false;
  std::int64_t pipeline = 1;        ///< stages; model.layers is a multiple of pipeline * virtual_stages
  std::int64_t virtual_stages = 1;  ///< chunks of a stage
  std::vector<RecomputeModule> recompute = {};
  bool delay_weight_gradients = false;
  ExpertSettings experts = {};
  /// Whether the update depends on all gradients: it clips them, or leaves out steps with a large norm or too many
  /// rows of experts. If not, weights are updated in parts, each of which may begin when its own gradients are there.
  bool update_needs_norm = true;
  /// Between the parts of layers that tensor ranks share, each has its own tokens.
  bool sequence_parallel = false;
};

/// Rows kept for the experts of a layer on each of the ranks that share them, each with this many tokens: topk a token
/// times the budget, for the tokens of all these ranks, or the capacity of all experts where tokens are dropped. No more
/// than there can be.
std::int64_t expert_rows(const ModelConfiguration& model, const ExpertSettings& settings, std::int64_t tokens,
                         std::int64_t ranks = 1);
/// Rows of one expert where tokens are dropped, at most one a token; 0: nothing is dropped.
std::int64_t expert_capacity(const ModelConfiguration& model, const ExpertSettings& settings,
                             std::int64_t tokens);

/// The numbers that a training step reads from device memory, in the order of the `scalars` buffer.
const std::vector<std::string>& step_scalar_names();

/// A step of a model as a program, with the buffers that a caller binds or reads.
template <class Space>
struct StepProgram {
  graph::Program<Space> program;
  graph::BufferId parameters;              ///< [ParameterLayout::elements()]
  graph::BufferId rope_cosine, rope_sine;  ///< [tokens, head_dim / 2]; empty without rotary positions
  graph::BufferId ids;                     ///< [microbatches, sequences, tokens] int32
  graph::BufferId labels;                  ///< the same; negative: ignored
  graph::BufferId scalars;                 ///< float64, step_scalar_names()
  graph::BufferId loss;                    ///< float64: mean over the labels that count, of all microbatches
  graph::BufferId label_count;             ///< float64
  // Training only.
  std::optional<graph::BufferId> gradients, first_moment, second_moment, master, gradient_norm;
  std::optional<graph::BufferId> balance_loss,
      z_loss;                                       ///< float64, as StepResult tells them
  std::optional<graph::BufferId> tokens_of_expert;  ///< [layers with experts, experts] int32, of the step
  std::optional<graph::BufferId> rows_needed;       ///< [microbatches, layers with experts] int32
  std::optional<graph::BufferId>
      over_budget;  ///< float64: rows needed at most, and whether they were too many
  // Models whose choice of experts has a bias: [layers with experts, experts].
  std::optional<graph::BufferId> expert_bias;
  // Evaluation only: [sequences, tokens, vocab] of each microbatch.
  std::vector<graph::BufferId> logits;
};

/// What the rotary tables of a program must be made from, if it has any.
kernels::RopeFrequencies rope_frequencies(const ModelConfiguration& model);

/// Builds the program: forward and backward of every microbatch through every chunk of layers, in the order of
/// merged_order(), or of one stage's chunks in that of stage_operations() where the device is in `pipeline`, then (training)
/// the gradient norm, AdamW, and the advance of the random streams. Random numbers depend on microbatch and layer alone.
/// A recomputed module has a segment `<module>/recompute` before its backward; a delayed weight gradient has
/// one, `<module>/weight_gradient`, behind all other backward segments of its chunk. Neither changes a number.
/// T is the type of weights and activations, G that of gradients. The device is asked for workspace sizes only.
template <class Space, class T, class G>
StepProgram<Space> build_step_program(backend::Device<Space>& device, const ModelConfiguration& model,
                                      const ParameterLayout& layout, const StepShape& shape);

}  // namespace encore::model
