// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"

#include <encore/backend/error.hpp>
#include <encore/kernels/initialization.hpp>
#include <encore/kernels/rope.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstring>

namespace encore::model {

inline graph::CapturePolicy policy_of(const GraphConfiguration& configuration) {
  graph::CapturePolicy policy;
  policy.scope = static_cast<graph::CaptureScope>(configuration.impl);
  policy.optimizer = static_cast<graph::OptimizerCapture>(configuration.optimizer);
  policy.warmup_steps = configuration.warmup_steps;
  for (const GraphModule module : configuration.modules) {
    if (module == GraphModule::attn) policy.modules.insert(graph::Module::attn);
    if (module == GraphModule::mlp) policy.modules.insert(graph::Module::mlp);
  }
  return policy;
}

inline StepShape training_shape_of(const TrainConfiguration& train) {
  return {train.microbatches,
          train.microbatch,
          train.seq,
          true,
          train.optimizer_state == Precision::bf16 ? backend::DataType::bfloat16 : backend::DataType::float32,
          train.master_weights};
}

template <class Space, class T, class G>
struct DeviceTrainer<Space, T, G>::Evaluation {
  StepProgram<Space> step;
  graph::MemoryPlan plan;
  backend::Allocation<Space> arena, logits, batch;
  graph::Bindings bindings;
  graph::CapturePolicy policy;  // eager
  std::unique_ptr<graph::Executor<Space>> executor;
};

template <class Space, class T, class G>
DeviceTrainer<Space, T, G>::DeviceTrainer(const Configuration& configuration)
    : configuration_(configuration),
      layout_(configuration.model, configuration.train.decay_all),
      device_(static_cast<std::uint64_t>(configuration.seed)),
      training_(build_step_program<Space, T, G>(device_, configuration_.model, layout_,
                                                training_shape_of(configuration.train))),
      plan_(graph::plan_memory(training_.program.outline())),
      scalars_(device_.stream(), step_scalar_names()),
      batch_copied_(batch_slots) {
  graph::audit(training_.program.outline(), plan_);
  check_memory();
  allocate();
  initialize_weights();
  executor_ = std::make_unique<graph::Executor<Space>>(device_, training_.program, bind(),
                                                       policy_of(configuration_.graph));
}

template <class Space, class T, class G>
DeviceTrainer<Space, T, G>::~DeviceTrainer() = default;

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::check_memory() const {
  const std::size_t needed = plan_.total_bytes();
  const auto limit = static_cast<std::size_t>(configuration_.graph.memory_limit);
  constexpr double gibibyte = 1024.0 * 1024.0 * 1024.0;
  if (limit > 0 && needed > limit)
    throw OutOfMemoryError(
        fmt::format("training needs {:.2f} GiB and graph.memory_limit allows {:.2f} GiB: raise it, "
                    "or make train.microbatch, train.seq or the model smaller",
                    static_cast<double>(needed) / gibibyte, static_cast<double>(limit) / gibibyte));
  const std::size_t available = backend::available_memory<Space>();
  if (needed > available)
    throw OutOfMemoryError(
        fmt::format("training needs {:.2f} GiB and {:.2f} GiB of {} memory are free: make "
                    "train.microbatch, train.seq or the model smaller",
                    static_cast<double>(needed) / gibibyte, static_cast<double>(available) / gibibyte,
                    backend::name_of(backend::backend_of<Space>())));
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::allocate() {
  auto& stream = device_.stream();
  const graph::Outline& outline = training_.program.outline();
  const auto allocate_cleared = [&](const char* label, std::size_t bytes) {
    backend::Allocation<Space> allocation(label, bytes);
    stream.clear(allocation.data(), bytes, label);
    return allocation;
  };
  parameters_ = allocate_cleared("parameters", outline.buffer(training_.parameters).bytes());
  gradients_ = allocate_cleared("gradients", outline.buffer(*training_.gradients).bytes());
  first_moment_ = allocate_cleared("first moment", outline.buffer(*training_.first_moment).bytes());
  second_moment_ = allocate_cleared("second moment", outline.buffer(*training_.second_moment).bytes());
  if (training_.master)
    master_ = allocate_cleared("master weights", outline.buffer(*training_.master).bytes());
  batch_ = allocate_cleared("batch", 2 * outline.buffer(training_.ids).bytes());
  metrics_ = allocate_cleared("metrics", metrics * sizeof(double));
  arena_ = backend::Allocation<Space>("arena", plan_.arena_bytes);
  batch_staging_ = backend::StagingAllocation<Space>("batch", batch_slots * batch_.bytes());
  metrics_staging_ = backend::StagingAllocation<Space>("metrics", metrics_.bytes());

  using A = Accumulator<T>;
  const graph::Buffer& table = outline.buffer(training_.rope_cosine);
  rope_ = allocate_cleared("rope tables", 2 * table.bytes());
  if (table.elements() > 0) {
    const auto rows = static_cast<std::size_t>(table.shape[0]),
               columns = static_cast<std::size_t>(table.shape[1]);
    auto* data = reinterpret_cast<A*>(rope_.data());
    kernels::rope_tables<Space, A>(stream, configuration_.model.rope_theta,
                                   backend::Matrix<A, Space>(data, rows, columns),
                                   backend::Matrix<A, Space>(data + rows * columns, rows, columns));
  }
}

template <class Space, class T, class G>
graph::Bindings DeviceTrainer<Space, T, G>::bind() {
  const graph::Outline& outline = training_.program.outline();
  graph::Bindings bindings(outline);
  bindings.bind(training_.parameters, parameters_.data());
  bindings.bind(*training_.gradients, gradients_.data());
  bindings.bind(*training_.first_moment, first_moment_.data());
  bindings.bind(*training_.second_moment, second_moment_.data());
  if (training_.master) bindings.bind(*training_.master, master_.data());
  bindings.bind(training_.ids, batch_.data());
  bindings.bind(training_.labels, batch_.data() + batch_.bytes() / 2);
  bindings.bind(training_.scalars, scalars_.device_data());
  bindings.bind(training_.loss, metrics_.data());
  bindings.bind(training_.label_count, metrics_.data() + sizeof(double));
  bindings.bind(*training_.gradient_norm, metrics_.data() + 2 * sizeof(double));
  bindings.bind(training_.rope_cosine, rope_.data());
  bindings.bind(training_.rope_sine, rope_.data() + rope_.bytes() / 2);
  bindings.bind_arena(plan_, arena_.data());
  bindings.bind_parts(outline);
  return bindings;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::initialize_weights() {
  using A = Accumulator<T>;
  auto& stream = device_.stream();
  const auto fill = [&]<class Element>(Element* data) {
    std::uint32_t segment = 0;
    for (const Parameter& parameter : layout_.parameters()) {
      const backend::Vector<Element, Space> values(data + parameter.offset,
                                                   static_cast<std::size_t>(parameter.elements()));
      const std::uint32_t draw = segment++;
      if (parameter.initialization == Initialization::normal) {
        kernels::fill_normal<Space, Element>(stream, values, 0.0, parameter.deviation,
                                             static_cast<std::uint64_t>(configuration_.seed), draw);
      } else {
        kernels::fill_constant<Space, Element>(stream, values,
                                               parameter.initialization == Initialization::ones ? 1.0 : 0.0);
      }
    }
  };
  auto* weights = reinterpret_cast<T*>(parameters_.data());
  if (training_.master) {
    auto* master = reinterpret_cast<A*>(master_.data());
    fill(master);
    const auto count = static_cast<std::size_t>(layout_.elements());
    if constexpr (!std::is_same_v<A, T>)
      kernels::convert<Space, A, T>(stream, backend::Vector<const A, Space>(master, count),
                                    backend::Vector<T, Space>(weights, count));
  } else {
    fill(weights);
  }
  stream.synchronize("weights initialised");
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::check_tokens(std::span<const std::int32_t> ids,
                                              std::span<const std::int32_t> labels,
                                              std::size_t expected) const {
  if (ids.size() != expected || labels.size() != expected)
    throw InternalError(
        fmt::format("a batch of {} tokens and {} labels was given where the configuration has {}", ids.size(),
                    labels.size(), expected));
  const std::int64_t vocab = configuration_.model.vocab;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab || labels[i] >= vocab)
      throw InputFileError(fmt::format("token {} at place {} of the batch is outside the vocabulary of {}",
                                       ids[i] < 0 || ids[i] >= vocab ? ids[i] : labels[i], i, vocab));
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::set_batch(std::span<const std::int32_t> ids,
                                           std::span<const std::int32_t> labels) {
  const std::size_t bytes = batch_.bytes() / 2;
  check_tokens(ids, labels, bytes / sizeof(std::int32_t));
  std::byte* slot = batch_staging_.data() + next_batch_slot_ * batch_.bytes();
  batch_copied_[next_batch_slot_].wait();
  std::memcpy(slot, ids.data(), bytes);
  std::memcpy(slot + bytes, labels.data(), bytes);
  device_.stream().copy_to_device(batch_.data(), slot, batch_.bytes(), "batch");
  batch_copied_[next_batch_slot_].record(device_.stream());
  next_batch_slot_ = (next_batch_slot_ + 1) % batch_slots;
}

template <class Space, class T, class G>
StepResult DeviceTrainer<Space, T, G>::run_step(double learning_rate, bool eagerly) {
  const auto start = std::chrono::steady_clock::now();
  auto& stream = device_.stream();
  const TrainConfiguration& train = configuration_.train;
  scalars_.set("learning_rate", learning_rate);
  scalars_.set("weight_decay", train.weight_decay);
  scalars_.set("beta1", train.beta1);
  scalars_.set("beta2", train.beta2);
  scalars_.set("epsilon", train.epsilon);
  scalars_.set("clip", train.clip);
  scalars_.set("step", static_cast<double>(steps_done_ + 1));
  scalars_.set("gradient_scale", 1.0);
  scalars_.set("dropout", configuration_.model.dropout);
  scalars_.set("attention_dropout", configuration_.model.attention_dropout);
  scalars_.upload(stream);

  StepResult result{};
  step_begin_.record(stream);
  result.report = eagerly ? executor_->step_eagerly() : executor_->step();
  step_end_.record(stream);
  stream.copy_to_host(metrics_staging_.data(), metrics_.data(), metrics_.bytes(), "metrics");
  metrics_copied_.record(stream);
  metrics_copied_.wait();

  double values[metrics];
  std::memcpy(values, metrics_staging_.data(), sizeof values);
  result.step = ++steps_done_;
  result.loss = values[0];
  result.gradient_norm = values[2];
  result.device_milliseconds = backend::Event<Space>::milliseconds(step_begin_, step_end_);
  result.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

template <class Space, class T, class G>
auto DeviceTrainer<Space, T, G>::evaluation() -> Evaluation& {
  if (evaluation_) return *evaluation_;
  const TrainConfiguration& train = configuration_.train;
  StepProgram<Space> step = build_step_program<Space, T, G>(device_, configuration_.model, layout_,
                                                            {1, train.microbatch, train.seq, false});
  graph::MemoryPlan plan = graph::plan_memory(step.program.outline());
  graph::Bindings bindings(step.program.outline());
  evaluation_ = std::make_unique<Evaluation>(
      Evaluation{std::move(step), std::move(plan), {}, {}, {}, std::move(bindings), {}, nullptr});
  Evaluation& e = *evaluation_;
  const graph::Outline& outline = e.step.program.outline();
  e.arena = backend::Allocation<Space>("evaluation arena", e.plan.arena_bytes);
  e.logits = backend::Allocation<Space>("logits", outline.buffer(e.step.logits.at(0)).bytes());
  e.batch = backend::Allocation<Space>("evaluation batch",
                                       2 * outline.buffer(e.step.ids).bytes() + 2 * sizeof(double));
  const std::size_t tokens_bytes = outline.buffer(e.step.ids).bytes();
  e.bindings.bind(e.step.parameters, parameters_.data());
  e.bindings.bind(e.step.ids, e.batch.data());
  e.bindings.bind(e.step.labels, e.batch.data() + tokens_bytes);
  e.bindings.bind(e.step.loss, e.batch.data() + 2 * tokens_bytes);
  e.bindings.bind(e.step.label_count, e.batch.data() + 2 * tokens_bytes + sizeof(double));
  e.bindings.bind(e.step.scalars, scalars_.device_data());
  e.bindings.bind(e.step.rope_cosine, rope_.data());
  e.bindings.bind(e.step.rope_sine, rope_.data() + rope_.bytes() / 2);
  e.bindings.bind(e.step.logits.at(0), e.logits.data());
  e.bindings.bind_arena(e.plan, e.arena.data());
  e.bindings.bind_parts(outline);
  e.executor = std::make_unique<graph::Executor<Space>>(device_, e.step.program, e.bindings, e.policy);
  return e;
}

template <class Space, class T, class G>
double DeviceTrainer<Space, T, G>::evaluate(std::span<const std::int32_t> ids,
                                            std::span<const std::int32_t> labels) {
  Evaluation& e = evaluation();
  auto& stream = device_.stream();
  const std::size_t bytes = e.step.program.outline().buffer(e.step.ids).bytes();
  check_tokens(ids, labels, bytes / sizeof(std::int32_t));
  stream.copy_to_device(e.batch.data(), ids.data(), bytes, "evaluation ids");
  stream.copy_to_device(e.batch.data() + bytes, labels.data(), bytes, "evaluation labels");
  e.executor->step_eagerly();
  double loss = 0;
  stream.copy_to_host(&loss, e.batch.data() + 2 * bytes, sizeof loss, "evaluation loss");
  stream.synchronize("evaluation");
  return loss;
}

template <class Space, class T, class G>
std::vector<float> DeviceTrainer<Space, T, G>::logits() {
  Evaluation& e = evaluation();
  std::vector<std::byte> bytes(e.logits.bytes());
  device_.stream().copy_to_host(bytes.data(), e.logits.data(), bytes.size(), "logits");
  device_.stream().synchronize("logits");
  return to_float(bytes, backend::data_type_of<T>);
}

template <class Space, class T, class G>
std::optional<backend::DataType> DeviceTrainer<Space, T, G>::type_of(ParameterArray array) const {
  const graph::Outline& outline = training_.program.outline();
  switch (array) {
    case ParameterArray::weights: return outline.buffer(training_.parameters).type;
    case ParameterArray::gradients: return outline.buffer(*training_.gradients).type;
    case ParameterArray::first_moment: return outline.buffer(*training_.first_moment).type;
    case ParameterArray::second_moment: return outline.buffer(*training_.second_moment).type;
    case ParameterArray::master:
      if (training_.master) return outline.buffer(*training_.master).type;
  }
  return std::nullopt;
}

template <class Space, class T, class G>
std::byte* DeviceTrainer<Space, T, G>::address(ParameterArray array) const {
  switch (array) {
    case ParameterArray::weights: return parameters_.data();
    case ParameterArray::gradients: return gradients_.data();
    case ParameterArray::first_moment: return first_moment_.data();
    case ParameterArray::second_moment: return second_moment_.data();
    case ParameterArray::master: return master_.data();
  }
  return nullptr;
}

template <class Space, class T, class G>
std::vector<std::byte> DeviceTrainer<Space, T, G>::read(ParameterArray array, const ParameterSlice& slice) {
  const auto type = type_of(array);
  if (!type) throw InternalError("the trainer has no such array of parameters");
  const std::size_t size = backend::size_of(*type);
  std::vector<std::byte> bytes(static_cast<std::size_t>(slice.elements()) * size);
  device_.stream().copy_to_host(bytes.data(), address(array) + static_cast<std::size_t>(slice.offset) * size,
                                bytes.size(), "reading parameters");
  device_.stream().synchronize("reading parameters");
  return bytes;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::write(ParameterArray array, const ParameterSlice& slice,
                                       std::span<const std::byte> bytes) {
  const auto type = type_of(array);
  if (!type) throw InternalError("the trainer has no such array of parameters");
  const std::size_t size = backend::size_of(*type);
  if (bytes.size() != static_cast<std::size_t>(slice.elements()) * size)
    throw InternalError("'" + slice.name + "' was given in another size");
  device_.stream().copy_to_device(address(array) + static_cast<std::size_t>(slice.offset) * size,
                                  bytes.data(), bytes.size(), "writing parameters");
  device_.stream().synchronize("writing parameters");
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::set_weights(const ParameterSlice& slice, std::span<const float> values) {
  const std::vector<T> weights = [&] {
    std::vector<T> converted;
    converted.reserve(values.size());
    for (const float value : values) converted.push_back(static_cast<T>(value));
    return converted;
  }();
  write(ParameterArray::weights, slice, std::as_bytes(std::span(weights)));
  if (!training_.master) return;
  const std::vector<Accumulator<T>> master(values.begin(), values.end());
  write(ParameterArray::master, slice, std::as_bytes(std::span(master)));
}

template <class Space, class T, class G>
std::vector<RandomPosition> DeviceTrainer<Space, T, G>::random_positions() {
  std::vector<RandomPosition> positions;
  for (const backend::RandomState& state : device_.random().snapshot(device_.stream()))
    positions.push_back({state.seed, state.offset});
  return positions;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::restore(std::int64_t steps_done,
                                         const std::vector<RandomPosition>& positions) {
  std::vector<backend::RandomState> states;
  for (const RandomPosition& position : positions) states.push_back({position.seed, position.offset});
  device_.random().restore(device_.stream(), states);
  steps_done_ = steps_done;
}

template <class Space>
std::unique_ptr<Trainer> make_device_trainer(const Configuration& configuration) {
  using backend::bfloat16;
  const TrainConfiguration& train = configuration.train;
  if (train.precision == Precision::fp32)
    return std::make_unique<DeviceTrainer<Space, float, float>>(configuration);
  if (train.gradient_type == Precision::bf16)
    return std::make_unique<DeviceTrainer<Space, bfloat16, bfloat16>>(configuration);
  return std::make_unique<DeviceTrainer<Space, bfloat16, float>>(configuration);
}

}  // namespace encore::model
