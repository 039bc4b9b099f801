// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/event.hpp>
#include <encore/backend/watched_wait.hpp>
#include <encore/graph/scalars.hpp>
#include <encore/graph/snapshot.hpp>
#include <encore/model/trainer.hpp>

#include "kept_tuning.hpp"
#include "shaped_step.hpp"

namespace encore::model {

template <class T>
using Accumulator = backend::Accumulator<T>;

/// Trainer for one execution space, weight type T and gradient type G.
template <class Space, class T, class G>
class DeviceTrainer final : public Trainer {
 public:
  DeviceTrainer(const Configuration& configuration, const RankGroups& groups);
  ~DeviceTrainer() override;

  const Configuration& configuration() const override { return configuration_; }
  const ParameterLayout& layout() const override { return layout_; }
  void set_batch(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) override;
  void set_batch(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                 const BatchShape& shape) override;
  StepResult step(double learning_rate) override;
  StepResult step_eagerly(double learning_rate) override { return run_step(learning_rate, true); }
  graph::StepProfile profile(double learning_rate, const graph::ProfileOptions& options) override;
  std::int64_t steps_done() const override { return steps_done_; }
  void set_scalar(std::string_view name, double value) override;
  void end_warmup() override { current_->executor->end_warmup(); }
  void recapture() override;
  void reset_graphs() override;
  std::string first_bad_boundary() override;
  LengthStatistics length_statistics() const override;
  std::vector<std::int32_t> tokens_of_experts() override;
  double evaluate(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) override;
  std::vector<float> logits() override;
  std::optional<backend::DataType> type_of(ParameterArray array) const override;
  std::byte* address(ParameterArray array) const override;
  std::vector<std::byte> read(ParameterArray array, const ParameterSlice& slice) override;
  void write(ParameterArray array, const ParameterSlice& slice, std::span<const std::byte> bytes) override;
  void set_weights(const ParameterSlice& slice, std::span<const float> values) override;
  std::vector<std::byte> read(ParameterArray array, const ParameterBox& box) override;
  void write(ParameterArray array, const ParameterBox& box, std::span<const std::byte> bytes) override;
  void set_weights(const ParameterBox& box, std::span<const float> values) override;
  std::int32_t largest_of_ranks(std::int32_t mine) override;
  void add_over_ranks(std::span<std::int32_t> values) override;
  std::vector<RandomPosition> random_positions() override;
  void restore(std::int64_t steps_done, const std::vector<RandomPosition>& positions) override;
  std::unique_ptr<SavedState> save_state() override;
  void restore_state(const SavedState& state) override;
  const graph::Outline& outline() const override { return main_->outline(); }
  const graph::MemoryPlan& memory_plan() const override { return main_->plan; }
  const std::vector<graph::Run>& runs() const override { return main_->executor->runs(); }
  const std::string& refusal() const override { return current_->executor->refusal(); }
  std::string device_description() const override { return backend::describe_device<Space>(); }
  std::string blas_description() const override { return device_.blas().description(); }
  TuningSummary tuning() const override;

 private:
  using Shaped = ShapedStep<Space>;
  struct Gathered;
  /// Whether data ranks have parts of an array.
  bool is_sharded(ParameterArray array) const;
  /// What this rank has around a box of such an array, and zeros.
  Gathered gather(ParameterArray array, const ParameterBox& box);
  void seed_random_streams();
  template <class Place>
  void set_weights_at(const Place& place, std::span<const float> values);
  /// A forward-only program over the same parameters, made when it is first asked for.
  struct Evaluation;

  void prepare_shapes();
  void check_memory();
  void allocate();
  void allocate_for_experts();
  graph::Bindings bind(const Shaped& shaped, std::byte* arena) const;
  void bind_experts(const StepProgram<Space>& step, graph::Bindings& bindings) const;
  void make_executor(Shaped& shaped, bool captures);
  void initialize_weights();
  void initialize_shares_of_master();
  void set_initial_scalars();
  StepResult run_step(double learning_rate, bool eagerly);
  StepResult run_step(double learning_rate, graph::Executor<Space>& executor, bool eagerly);
  StepResult step_over_budget(double learning_rate, StepResult within_budget, bool eagerly);
  void require_memory_over_budget(std::size_t bytes, const std::string& reason) const;
  StepResult validated_step(double learning_rate);

  void require_shape(const BatchShape& shape) const;
  /// What a batch runs by, and why that is not captured; empty: it may be.
  struct Choice {
    Shaped& shaped;
    std::string eager_reason;
  };
  Choice choose(const BatchShape& shape);
  Shaped& exact(const BatchShape& shape, bool records);
  Shaped* find_recorded(const BatchShape& shape) const;

  std::vector<std::uint64_t> state_checksums();
  graph::Snapshot take_snapshot() const;
  std::string difference(const graph::Snapshot& replay, const graph::Snapshot& eager) const;

  void check_tokens(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                    std::size_t expected) const;
  std::int64_t elements_of(ParameterArray array) const;
  Evaluation& evaluation();
  std::vector<float> logits_of_tensor_ranks();
  void require_memory_for_evaluation(std::size_t bytes) const;

  Configuration configuration_;
  KeptTuning tuning_;
  ParameterLayout layout_;
  mutable backend::Device<Space> device_;
  std::vector<std::unique_ptr<Shaped>>
      recorded_;                     ///< shapes that are, or may be, captured; the main one first
  std::unique_ptr<Shaped> passing_;  ///< the last shape that runs eagerly
  Shaped* main_ = nullptr;           ///< of the configuration's own shape
  Shaped* current_ = nullptr;        ///< of the batch that was set last
  std::string eager_reason_;         ///< why the batch that was set last is not captured
  BatchShape batch_shape_{};         ///< of that batch, before padding
  std::size_t allocated_bytes_ = 0;  ///< forecast
  std::size_t arena_bytes_ = 0;      ///< of the largest plan
  graph::Scalars<Space> scalars_;

  backend::Allocation<Space> parameters_, gradients_, first_moment_, second_moment_, master_;
  backend::Allocation<Space> rope_, batch_, metrics_, arena_, ring_, slot_;
  backend::Allocation<Space> expert_counts_, expert_bias_;
  backend::StagingAllocation<Space> batch_staging_, metrics_staging_;
  std::vector<backend::Event<Space>> batch_copied_;
  std::size_t next_batch_slot_ = 0;
  backend::Event<Space> step_begin_, step_end_, metrics_copied_;

  std::unique_ptr<Evaluation> evaluation_;
  LengthStatistics lengths_;  ///< without recorded_lengths
  std::int64_t steps_done_ = 0;
  std::int64_t steps_here_ = 0;  ///< since this object was made
};

/// The trainers of one backend.
template <class Space>
std::unique_ptr<Trainer> make_device_trainer(const Configuration& configuration, const RankGroups& groups);

}  // namespace encore::model
