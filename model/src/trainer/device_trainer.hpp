// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/event.hpp>
#include <encore/graph/executor.hpp>
#include <encore/graph/scalars.hpp>
#include <encore/model/step_program.hpp>
#include <encore/model/trainer.hpp>

namespace encore::model {

template <class T>
using Accumulator = backend::Accumulator<T>;

/// Trainer for one execution space, weight type T and gradient type G.
template <class Space, class T, class G>
class DeviceTrainer final : public Trainer {
 public:
  explicit DeviceTrainer(const Configuration& configuration);
  ~DeviceTrainer() override;

  const Configuration& configuration() const override { return configuration_; }
  const ParameterLayout& layout() const override { return layout_; }
  void set_batch(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) override;
  StepResult step(double learning_rate) override { return run_step(learning_rate, false); }
  StepResult step_eagerly(double learning_rate) override { return run_step(learning_rate, true); }
  std::int64_t steps_done() const override { return steps_done_; }
  double evaluate(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) override;
  std::vector<float> logits() override;
  std::optional<backend::DataType> type_of(ParameterArray array) const override;
  std::vector<std::byte> read(ParameterArray array, const ParameterSlice& slice) override;
  void write(ParameterArray array, const ParameterSlice& slice, std::span<const std::byte> bytes) override;
  void set_weights(const ParameterSlice& slice, std::span<const float> values) override;
  std::vector<RandomPosition> random_positions() override;
  void restore(std::int64_t steps_done, const std::vector<RandomPosition>& positions) override;
  const graph::Outline& outline() const override { return training_.program.outline(); }
  const graph::MemoryPlan& memory_plan() const override { return plan_; }
  const std::vector<graph::Run>& runs() const override { return executor_->runs(); }
  const std::string& refusal() const override { return executor_->refusal(); }
  std::string device_description() const override { return backend::describe_device<Space>(); }
  std::string blas_description() const override { return device_.blas().description(); }

 private:
  /// A forward-only program over the same parameters, made when it is first asked for.
  struct Evaluation;

  static constexpr std::size_t batch_slots = 4;
  static constexpr std::size_t metrics = 3;  ///< loss, label_count, gradient_norm

  void check_memory() const;
  void allocate();
  graph::Bindings bind();
  void initialize_weights();
  StepResult run_step(double learning_rate, bool eagerly);
  void check_tokens(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                    std::size_t expected) const;
  std::byte* address(ParameterArray array) const;
  Evaluation& evaluation();

  Configuration configuration_;
  ParameterLayout layout_;
  mutable backend::Device<Space> device_;
  StepProgram<Space> training_;
  graph::MemoryPlan plan_;
  graph::Scalars<Space> scalars_;

  backend::Allocation<Space> parameters_, gradients_, first_moment_, second_moment_, master_;
  backend::Allocation<Space> rope_, batch_, metrics_, arena_;
  backend::StagingAllocation<Space> batch_staging_, metrics_staging_;
  std::vector<backend::Event<Space>> batch_copied_;
  std::size_t next_batch_slot_ = 0;
  backend::Event<Space> step_begin_, step_end_, metrics_copied_;

  std::unique_ptr<graph::Executor<Space>> executor_;
  std::unique_ptr<Evaluation> evaluation_;
  std::int64_t steps_done_ = 0;
};

/// The trainers of one backend.
template <class Space>
std::unique_ptr<Trainer> make_device_trainer(const Configuration& configuration);

}  // namespace encore::model
