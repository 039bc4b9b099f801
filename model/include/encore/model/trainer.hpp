// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>
#include <encore/backend/transport.hpp>
#include <encore/graph/memory_plan.hpp>
#include <encore/graph/policy.hpp>
#include <encore/graph/step_profile.hpp>
#include <encore/graph/step_report.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace encore::model {

/// The arrays that have the shape of the parameters, and that of the experts' biases.
enum class ParameterArray { weights, gradients, first_moment, second_moment, master, expert_bias };
inline constexpr std::array all_parameter_arrays{ParameterArray::weights,      ParameterArray::gradients,
                                                 ParameterArray::first_moment, ParameterArray::second_moment,
                                                 ParameterArray::master,       ParameterArray::expert_bias};
/// The stretches of an array that a model's files have as tensors, with offsets from the array's start. Empty for the
/// experts' biases of a model that has none.
inline std::vector<ParameterSlice> slices_of(const ParameterLayout& layout, ParameterArray array) {
  return array == ParameterArray::expert_bias ? layout.expert_biases() : layout.slices();
}

/// The extents of a batch.
struct BatchShape {
  std::int64_t microbatches;
  std::int64_t sequences;  ///< in a microbatch
  std::int64_t tokens;     ///< in a sequence
  std::int64_t elements() const { return microbatches * sequences * tokens; }
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

struct StepResult {
  std::int64_t step;           ///< 1 for the first
  double loss;                 ///< before the update, mean over the labels that count, in nats
  double gradient_norm;        ///< before clipping
  double milliseconds;         ///< from queueing the step until its numbers were on the host
  double device_milliseconds;  ///< between the step's start and end on the device
  graph::StepReport report;
  bool skipped = false;              ///< train.skip_above left the update out
  std::int64_t tokens = 0;           ///< of the batch
  std::int64_t computed_tokens = 0;  ///< with those that pad it to the recorded length
  std::string eager_reason =
      {};                  ///< why this step ran eagerly although graphs were asked for; empty: it did not
  bool validated = false;  ///< the replay was compared with an eager run of the same step
  // Models with experts only. Losses are summed over layers and averaged over microbatches, before their coefficients.
  double balance_loss = 0;  ///< of each layer 1 for an even load
  double router_z_loss = 0;
  bool over_budget = false;  ///< some rows did not fit; the step was then done again eagerly
  /// Relative to topk rows a token: the train.expert_budget, or train.expert_capacity, with which no row of the layer
  /// that needs most would have been missing.
  double expert_rows_needed = 0;
};

/// What came of batches of different lengths.
struct LengthStatistics {
  std::int64_t steps = 0;
  std::int64_t replayed = 0;  ///< or recorded
  std::int64_t tokens = 0;
  std::int64_t computed_tokens = 0;
  std::int64_t recorded_lengths = 0;

  /// Share of the steps that were replayed.
  double coverage() const {
    return steps == 0 ? 0.0 : static_cast<double>(replayed) / static_cast<double>(steps);
  }
  /// Computed for nothing, as a share of the tokens that were needed.
  double waste() const {
    return tokens == 0 ? 0.0 : static_cast<double>(computed_tokens) / static_cast<double>(tokens) - 1.0;
  }
};

/// What train.tune_products did, on CUDA.
struct TuningSummary {
  std::size_t measured = 0;       ///< products whose algorithm was picked by measurement
  std::size_t taken = 0;          ///< products whose algorithm was in train.tuning_cache
  std::size_t other_entries = 0;  ///< of train.tuning_cache, for other GPUs or versions of the library
  double seconds = 0;             ///< that measuring took
  std::string note = {};  ///< about the file, or about products that could not be measured; often empty
};

/// Where a named random stream stands.
struct RandomPosition {
  std::uint64_t seed;
  std::uint64_t offset;
  friend bool operator==(const RandomPosition&, const RandomPosition&) = default;
};

/// Everything that decides how a training goes on, and the last gradients, kept for going back to it.
class SavedState {
 public:
  virtual ~SavedState() = default;

  std::int64_t steps_done = 0;
  std::vector<RandomPosition> positions;
  /// Of weights, gradients, moments and master weights: other bits give other checksums.
  std::vector<std::uint64_t> checksums;

  bool same_as(const SavedState& other) const {
    return steps_done == other.steps_done && positions == other.positions && checksums == other.checksums;
  }

 protected:
  SavedState() = default;
  SavedState(const SavedState&) = default;
  SavedState& operator=(const SavedState&) = default;
};

/// A model with its optimizer on one device, trained step by step under the configuration's capture policy.
/// Owns all its memory, which is allocated once, before the first step. Used by one thread at a time.
class Trainer {
 public:
  virtual ~Trainer() = default;

  virtual const Configuration& configuration() const = 0;
  virtual const ParameterLayout& layout() const = 0;

  /// Queues the copy of the next step's tokens to the device. Both are
  /// [train.microbatches, train.microbatch, train.seq]; a negative label is ignored. Throws InputFileError
  /// for a token or label outside the vocabulary, InternalError for another size.
  virtual void set_batch(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) = 0;
  /// The same for a batch of another shape. A shorter sequence is padded to the next length of graph.buckets; without
  /// buckets each length is recorded as it comes, up to graph.recordings of them. Padding changes no number: its
  /// labels are ignored, and attention looks back only. (With dropout the masks are those of the padded shape.) Longer sequences run eagerly or are refused, as
  /// graph.above_largest says. Throws ReplayContractError that lists all that does not fit: other numbers of
  /// microbatches or sequences than the configuration's (unless graph.recapture is set), or more than train.seq
  /// tokens.
  virtual void set_batch(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                         const BatchShape& shape) = 0;

  /// Trains one step on the batch that was set last, and waits for its numbers. Every graph.validate_every-th step
  /// is replayed, taken back and run eagerly too, and all named buffers that are whole at its end are compared (with
  /// graph.checksums also what every segment wrote): ValidationError names the first that differs.
  virtual StepResult step(double learning_rate) = 0;
  /// The same without graphs.
  virtual StepResult step_eagerly(double learning_rate) = 0;
  /// Times each segment of the step on the batch that was set last, and the whole step by replay, against what the
  /// device could do. Changes nothing of the training state; what that takes is kept beside it meanwhile.
  virtual graph::StepProfile profile(double learning_rate, const graph::ProfileOptions& options) = 0;
  /// Changes a number that steps read from device memory, for all steps to come: weight_decay, clip, dropout, ... The
  /// learning rate is an argument of step(). Throws ReplayContractError for other names, with the known ones, and for
  /// what is part of the recorded kernels.
  virtual void set_scalar(std::string_view name, double value) = 0;

  /// Counts the warm-up as done, so that the next step records.
  virtual void end_warmup() = 0;
  /// Lets the next steps record their graphs anew.
  virtual void recapture() = 0;
  /// Drops all graphs and gives their memory back; the next steps record them anew.
  virtual void reset_graphs() = 0;

  /// With graph.checksums: the first segment of the last step that wrote something infinite or not a number, as a
  /// clause. Empty when there is none, or without checksums. Waits for the device; runs nothing again.
  virtual std::string first_bad_boundary() = 0;

  virtual LengthStatistics length_statistics() const = 0;

  /// How many tokens of the last step went to each expert, [layers with experts, experts]; empty without experts.
  /// Waits for the device.
  virtual std::vector<std::int32_t> tokens_of_experts() = 0;

  /// Steps done, counting those before a resume.
  virtual std::int64_t steps_done() const = 0;

  /// Loss of `sequences` of train.seq tokens, at most train.microbatch, without dropout; changes no training
  /// state. Sets what logits() returns.
  virtual double evaluate(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) = 0;
  /// [sequences, train.seq, vocab] of the last evaluate(). Tensor ranks evaluate together, on the same tokens, and call this
  /// together; each gets all logits.
  virtual std::vector<float> logits() = 0;

  /// Type of an array's elements; nothing when the configuration has no such array.
  virtual std::optional<backend::DataType> type_of(ParameterArray array) const = 0;
  /// Where an array begins in the device's memory, for as long as the trainer lives. Steps read and write it there.
  /// Weights written there are overwritten by the next step where there are master weights. nullptr: no such array.
  virtual std::byte* address(ParameterArray array) const = 0;
  /// The bytes of a stretch of an array; waits for the device. With parallel.shard_optimizer a rank has the gradients of its
  /// own share alone: what stands elsewhere are its terms of sums that others have.
  virtual std::vector<std::byte> read(ParameterArray array, const ParameterSlice& slice) = 0;
  virtual void write(ParameterArray array, const ParameterSlice& slice, std::span<const std::byte> bytes) = 0;
  /// Sets weights and, where there are any, master weights, from numbers; rounds to the weights' type.
  virtual void set_weights(const ParameterSlice& slice, std::span<const float> values) = 0;
  /// The same of what this rank has of a tensor, element by element of the box. Where data ranks have parts of the
  /// optimizer's state, all of them call read() together.
  virtual std::vector<std::byte> read(ParameterArray array, const ParameterBox& box) = 0;
  virtual void write(ParameterArray array, const ParameterBox& box, std::span<const std::byte> bytes) = 0;
  virtual void set_weights(const ParameterBox& box, std::span<const float> values) = 0;

  /// The largest of the numbers that all ranks which train together give; `mine` for one alone. Waits for all of them, so
  /// that none goes on before the last has come.
  virtual std::int32_t largest_of_ranks(std::int32_t mine) = 0;

  /// Replaces each number by the sum of those that all ranks give for it. Only where ranks have different parameters; else
  /// the numbers stay. Waits for all ranks.
  virtual void add_over_ranks(std::span<std::int32_t> values) = 0;

  virtual std::vector<RandomPosition> random_positions() = 0;
  /// For resuming. Throws ConfigurationError when the number of streams differs.
  virtual void restore(std::int64_t steps_done, const std::vector<RandomPosition>& positions) = 0;

  /// Keeps the state on the device where there is room for it, else on the host; and goes back to it. The state must
  /// not outlive the trainer, and belongs to it alone.
  virtual std::unique_ptr<SavedState> save_state() = 0;
  virtual void restore_state(const SavedState& state) = 0;

  virtual const graph::Outline& outline() const = 0;
  virtual const graph::MemoryPlan& memory_plan() const = 0;
  virtual const std::vector<graph::Run>& runs() const = 0;
  /// Empty, or why capturing was given up.
  virtual const std::string& refusal() const = 0;
  virtual std::string device_description() const = 0;
  virtual std::string blas_description() const = 0;
  virtual TuningSummary tuning() const = 0;
};

/// This process' (or thread's) ends of the groups of ranks that train together. Without an end the model trains by
/// itself; with one of a single rank the collectives are there all the same. Without `pipeline` this rank computes all
/// stages in turn.
struct RankGroups {
  std::shared_ptr<backend::Transport> data = nullptr;
  std::shared_ptr<backend::Transport> tensor = nullptr;
  std::shared_ptr<backend::Transport> expert = nullptr;
  std::shared_ptr<backend::Transport> expert_data = nullptr;
  std::shared_ptr<backend::Transport> pipeline = nullptr;
  std::shared_ptr<backend::Transport> world = nullptr;

  const std::shared_ptr<backend::Transport>& of(RankGroup group) const;
};

/// The groups of a rank of a job, split from the world of all its ranks, each of which calls it. Throws ConfigurationError
/// unless the world has as many ranks as tensor, data and pipeline ranks multiply to.
RankGroups make_rank_groups(std::shared_ptr<backend::Transport> world, const ParallelConfiguration& parallel);

/// What a rank has of the model, by its places in its groups.
ModelShard shard_in(const ParallelConfiguration& parallel, const RankGroups& groups);

/// Makes the trainer for the configuration's backend and precision, with weights initialised from the seed.
/// Kokkos must be initialised. Throws ConfigurationError, DeviceError when this build lacks the backend, and
/// OutOfMemoryError, before allocating anything, when the plan does not fit into what is free or into
/// graph.memory_limit. With groups every rank makes its trainer with the same configuration and sets batches of its own:
/// train.microbatch and train.microbatches count for one rank. Throws ConfigurationError unless the groups have the
/// sizes that the configuration says.
std::unique_ptr<Trainer> make_trainer(const Configuration& configuration, const RankGroups& groups = {});

/// Like an array's elements in numbers.
std::vector<float> to_float(std::span<const std::byte> bytes, backend::DataType type);

}  // namespace encore::model
