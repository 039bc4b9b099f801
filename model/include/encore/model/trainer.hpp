// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>
#include <encore/graph/memory_plan.hpp>
#include <encore/graph/policy.hpp>
#include <encore/graph/step_report.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace encore::model {

/// The arrays that have the shape of the parameters.
enum class ParameterArray { weights, gradients, first_moment, second_moment, master };

struct StepResult {
  std::int64_t step;           ///< 1 for the first
  double loss;                 ///< before the update, mean over the labels that count, in nats
  double gradient_norm;        ///< before clipping
  double milliseconds;         ///< from queueing the step until its numbers were on the host
  double device_milliseconds;  ///< between the step's start and end on the device
  graph::StepReport report;
};

/// Where a named random stream stands.
struct RandomPosition {
  std::uint64_t seed;
  std::uint64_t offset;
  friend bool operator==(const RandomPosition&, const RandomPosition&) = default;
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

  /// Trains one step on the batch that was set last, and waits for its numbers.
  virtual StepResult step(double learning_rate) = 0;
  /// The same without graphs.
  virtual StepResult step_eagerly(double learning_rate) = 0;
  /// Steps done, counting those before a resume.
  virtual std::int64_t steps_done() const = 0;

  /// Loss of `sequences` of train.seq tokens, at most train.microbatch, without dropout; changes no training
  /// state. Sets what logits() returns.
  virtual double evaluate(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) = 0;
  /// [sequences, train.seq, vocab] of the last evaluate().
  virtual std::vector<float> logits() = 0;

  /// Type of an array's elements; nothing when the configuration has no such array.
  virtual std::optional<backend::DataType> type_of(ParameterArray array) const = 0;
  /// The bytes of a stretch of an array; waits for the device.
  virtual std::vector<std::byte> read(ParameterArray array, const ParameterSlice& slice) = 0;
  virtual void write(ParameterArray array, const ParameterSlice& slice, std::span<const std::byte> bytes) = 0;
  /// Sets weights and, where there are any, master weights, from numbers; rounds to the weights' type.
  virtual void set_weights(const ParameterSlice& slice, std::span<const float> values) = 0;

  virtual std::vector<RandomPosition> random_positions() = 0;
  /// For resuming. Throws ConfigurationError when the number of streams differs.
  virtual void restore(std::int64_t steps_done, const std::vector<RandomPosition>& positions) = 0;

  virtual const graph::Outline& outline() const = 0;
  virtual const graph::MemoryPlan& memory_plan() const = 0;
  virtual const std::vector<graph::Run>& runs() const = 0;
  /// Empty, or why capturing was given up.
  virtual const std::string& refusal() const = 0;
  virtual std::string device_description() const = 0;
  virtual std::string blas_description() const = 0;
};

/// Makes the trainer for the configuration's backend and precision, with weights initialised from the seed.
/// Kokkos must be initialised. Throws ConfigurationError, DeviceError when this build lacks the backend, and
/// OutOfMemoryError, before allocating anything, when the plan does not fit into what is free or into
/// graph.memory_limit.
std::unique_ptr<Trainer> make_trainer(const Configuration& configuration);

/// Like an array's elements in numbers.
std::vector<float> to_float(std::span<const std::byte> bytes, backend::DataType type);

}  // namespace encore::model
