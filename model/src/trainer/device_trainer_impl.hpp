// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer_batches.hpp"
#include "device_trainer_evaluation.hpp"
#include "device_trainer_experts.hpp"
#include "device_trainer_parameters.hpp"
#include "device_trainer_profile.hpp"
#include "device_trainer_state.hpp"
#include "device_trainer_validation.hpp"
#include "initial_weights.hpp"
#include "kernel_labels.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/contract_rules.hpp>
#include <encore/kernels/initialization.hpp>
#include <encore/kernels/rope.hpp>
#include <encore/model/files/scalar_ranges.hpp>
#include <encore/model/memory_forecast.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace encore::model {

/// Whether this is the first of the ranks that train together.
inline bool is_first(const RankGroups& groups) {
  for (int group = 0; group < rank_groups; ++group)
    if (const auto& transport = groups.of(static_cast<RankGroup>(group)); transport && transport->rank() > 0)
      return false;
  return true;
}

/// What someone may want to change between steps and cannot, with the reason.
inline std::map<std::string, std::string, std::less<>> fixed_scalars(const Configuration& configuration) {
  const ModelConfiguration& model = configuration.model;
  const TrainConfiguration& train = configuration.train;
  const std::string recorded =
      "it is part of the recorded kernels; change the configuration and make a new trainer";
  std::map<std::string, std::string, std::less<>> fixed;
  for (const char* name : {"norm_epsilon", "rope_theta", "seq", "microbatch", "microbatches", "decay_all"})
    fixed.emplace(name, recorded);
  const std::string without = "the model was built without it, so no kernel draws";
  if (model.dropout == 0) fixed.emplace("dropout", without);
  if (model.attention_dropout == 0) fixed.emplace("attention_dropout", without);
  if (train.router_jitter == 0) fixed.emplace("router_jitter", without);
  const std::string no_term = "the model was built without it, so no gradient has such a term";
  if (train.balance_loss == 0) fixed.emplace("balance_loss", no_term);
  if (train.router_z_loss == 0) fixed.emplace("router_z_loss", no_term);
  if (!model.expert_bias) fixed.emplace("expert_bias_rate", "the model's choice of experts has no bias");
  for (const char* name : {"expert_capacity", "expert_budget"}) fixed.emplace(name, recorded);
  if (!update_needs_norm(configuration))
    for (const char* name : {"clip", "skip_above"})
      fixed.emplace(
          name,
          "the step was built without either (train.clip, train.skip_above), so weights are updated "
          "before the norm of all gradients is known");
  return fixed;
}

template <class Space, class T, class G>
DeviceTrainer<Space, T, G>::DeviceTrainer(const Configuration& configuration, const RankGroups& groups)
    : configuration_(configuration),
      tuning_(configuration.train, is_first(groups)),
      layout_(configuration.model, configuration.train.decay_all, shard_in(configuration.parallel, groups)),
      device_(static_cast<std::uint64_t>(configuration.seed)),
      scalars_(device_.stream(), step_scalar_names(), fixed_scalars(configuration)),
      batch_copied_(batch_slots) {
  if (tuning_.cache()) device_.blas().enable_tuning(true, tuning_.cache());
  for (int group = 0; group < rank_groups; ++group)
    if (const auto& transport = groups.of(static_cast<RankGroup>(group)))
      device_.join(std::string(name_of(static_cast<RankGroup>(group))), transport);
  seed_random_streams();
  prepare_shapes();
  check_memory();
  allocate();
  initialize_weights();
  set_initial_scalars();
  make_executor(*main_, true);
}

template <class Space, class T, class G>
DeviceTrainer<Space, T, G>::~DeviceTrainer() = default;

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::seed_random_streams() {
  std::vector<backend::RandomState> states = device_.random().snapshot(device_.stream());
  for (std::size_t i = 0; i < states.size(); ++i)
    states[i].seed += seed_of_rank(device_.random().names()[i], layout_.shard());
  device_.random().restore(device_.stream(), states);
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::check_memory() {
  const graph::Outline& outline = main_->outline();
  std::size_t graph_nodes = 0;
  if (recordings_take_memory(configuration_)) {
    const auto kernels = kernels_of(device_, main_->step.program, main_->plan);
    graph_nodes = lengths_captured(configuration_) *
                  captured_kernels(graph::cut(outline, policy_of(configuration_.graph)), kernels);
  }
  MemoryForecast forecast = forecast_memory(configuration_, outline, main_->plan, graph_nodes);
  forecast[MemoryUse::arena] = arena_bytes_;
  require_memory(configuration_, layout_.shard(), forecast);
  allocated_bytes_ = forecast.total();
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::allocate() {
  auto& stream = device_.stream();
  const graph::Outline& outline = main_->outline();
  const StepProgram<Space>& step = main_->step;
  const auto allocate_cleared = [&](const char* label, std::size_t bytes) {
    backend::Allocation<Space> allocation(label, bytes);
    stream.clear(allocation.data(), bytes, label);
    return allocation;
  };
  parameters_ = allocate_cleared("parameters", outline.buffer(step.parameters).bytes());
  gradients_ = allocate_cleared("gradients", outline.buffer(*step.gradients).bytes());
  first_moment_ = allocate_cleared("first moment", outline.buffer(*step.first_moment).bytes());
  second_moment_ = allocate_cleared("second moment", outline.buffer(*step.second_moment).bytes());
  if (step.master) master_ = allocate_cleared("master weights", outline.buffer(*step.master).bytes());
  batch_ = allocate_cleared("batch", 2 * outline.buffer(step.ids).bytes());
  metrics_ = allocate_cleared("metrics", metric_count(configuration_.model) * sizeof(double));
  arena_ = backend::Allocation<Space>("arena", arena_bytes_);
  if (main_->boundaries) {
    ring_ = allocate_cleared("boundary checksums", outline.buffer(main_->boundaries->ring).bytes());
    slot_ = allocate_cleared("boundary slot", sizeof(std::int64_t));
  }
  allocate_for_experts();
  batch_staging_ = backend::StagingAllocation<Space>("batch", batch_slots * batch_.bytes());
  metrics_staging_ = backend::StagingAllocation<Space>("metrics", metrics_.bytes());

  using A = Accumulator<T>;
  const graph::Buffer& table = outline.buffer(step.rope_cosine);
  rope_ = allocate_cleared("rope tables", 2 * table.bytes());
  if (table.elements() > 0) {
    const auto rows = static_cast<std::size_t>(table.shape[0]),
               columns = static_cast<std::size_t>(table.shape[1]);
    auto* data = reinterpret_cast<A*>(rope_.data());
    kernels::rope_tables<Space, A>(stream, rope_frequencies(configuration_.model),
                                   backend::Matrix<A, Space>(data, rows, columns),
                                   backend::Matrix<A, Space>(data + rows * columns, rows, columns));
  }
}

template <class Space, class T, class G>
graph::Bindings DeviceTrainer<Space, T, G>::bind(const Shaped& shaped, std::byte* arena) const {
  const graph::Outline& outline = shaped.outline();
  const StepProgram<Space>& step = shaped.step;
  graph::Bindings bindings(outline);
  bindings.bind(step.parameters, parameters_.data());
  bindings.bind(*step.gradients, gradients_.data());
  bindings.bind(*step.first_moment, first_moment_.data());
  bindings.bind(*step.second_moment, second_moment_.data());
  if (step.master) bindings.bind(*step.master, master_.data());
  bindings.bind(step.ids, batch_.data());
  bindings.bind(step.labels, batch_.data() + batch_.bytes() / 2);
  bindings.bind(step.scalars, scalars_.device_data());
  const auto metric = [&](Metric of) {
    return metrics_.data() + static_cast<std::size_t>(of) * sizeof(double);
  };
  bindings.bind(step.loss, metric(Metric::loss));
  bindings.bind(step.label_count, metric(Metric::label_count));
  bindings.bind(*step.gradient_norm, metric(Metric::gradient_norm));
  bindings.bind(step.rope_cosine, rope_.data());
  bindings.bind(step.rope_sine, rope_.data() + rope_.bytes() / 2);
  if (shaped.boundaries) {
    bindings.bind(shaped.boundaries->ring, ring_.data());
    bindings.bind(shaped.boundaries->slot, slot_.data());
  }
  bind_experts(step, bindings);
  bindings.bind_arena(shaped.plan, arena);
  bindings.bind_parts(outline);
  return bindings;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::initialize_weights() {
  using A = Accumulator<T>;
  auto& stream = device_.stream();
  const auto fill = [&]<class Element>(Element* data) {
    fill_initial_weights<Space>(stream, layout_, data, static_cast<std::uint64_t>(configuration_.seed));
  };
  auto* weights = reinterpret_cast<T*>(parameters_.data());
  if (!main_->step.master) {
    fill(weights);
  } else if (is_sharded(ParameterArray::master)) {
    initialize_shares_of_master();
  } else {
    auto* master = reinterpret_cast<A*>(master_.data());
    fill(master);
    const auto count = static_cast<std::size_t>(layout_.elements());
    if constexpr (!std::is_same_v<A, T>)
      kernels::convert<Space, A, T>(stream, backend::Vector<const A, Space>(master, count),
                                    backend::Vector<T, Space>(weights, count));
  }
  stream.synchronize("weights initialised");
}

/// Of each parameter the master weights are made whole, rounded to the weights, and this rank's share of them is kept.
template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::initialize_shares_of_master() {
  using A = Accumulator<T>;
  if constexpr (!std::is_same_v<A, T>) {
    auto& stream = device_.stream();
    std::int64_t largest = 0;
    for (const Parameter& parameter : layout_.parameters()) largest = std::max(largest, parameter.elements());
    const std::size_t bytes = static_cast<std::size_t>(largest) * sizeof(A);
    // Nothing is in the arena yet, and it is planned for.
    backend::Allocation<Space> more;
    if (arena_.bytes() < bytes) more = backend::Allocation<Space>("initial master weights", bytes);
    auto* const whole = reinterpret_cast<A*>(arena_.bytes() < bytes ? more.data() : arena_.data());
    auto* const master = reinterpret_cast<A*>(master_.data());
    auto* const weights = reinterpret_cast<T*>(parameters_.data());
    const std::vector<UpdatePart> parts = update_parts(layout_, configuration_.model.layers);
    InitialWeights<Space, A> initial(stream, layout_, static_cast<std::uint64_t>(configuration_.seed));
    for (const Parameter& parameter : layout_.parameters()) {
      initial.fill(parameter, whole);
      const auto count = static_cast<std::size_t>(parameter.elements());
      kernels::convert<Space, A, T>(stream, backend::Vector<const A, Space>(whole, count),
                                    backend::Vector<T, Space>(weights + parameter.offset, count));
      for (const UpdatePart& part : parts) {
        const Stretch own{std::max(part.own.begin, parameter.offset),
                          std::min(part.own.end, parameter.offset + parameter.elements())};
        if (own.begin < own.end)
          stream.copy(master + part.state_begin + own.begin - part.own.begin,
                      whole + own.begin - parameter.offset, static_cast<std::size_t>(own.size()) * sizeof(A),
                      "initial master weights");
      }
    }
    stream.synchronize("initial master weights");  // What was made for it goes.
  } else {
    throw InternalError("master weights have the weights' own type");
  }
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::set_initial_scalars() {
  const TrainConfiguration& train = configuration_.train;
  scalars_.set("weight_decay", train.weight_decay);
  scalars_.set("beta1", train.beta1);
  scalars_.set("beta2", train.beta2);
  scalars_.set("epsilon", train.epsilon);
  if (update_needs_norm(configuration_)) {
    scalars_.set("clip", train.clip);
    scalars_.set("skip_above", train.skip_above);
  }
  scalars_.set("gradient_scale", 1.0);
  if (train.balance_loss > 0) scalars_.set("balance_loss", train.balance_loss);
  if (train.router_z_loss > 0) scalars_.set("router_z_loss", train.router_z_loss);
  if (train.router_jitter > 0) scalars_.set("router_jitter", train.router_jitter);
  if (configuration_.model.expert_bias) scalars_.set("expert_bias_rate", train.expert_bias_rate);
  if (configuration_.model.dropout > 0) scalars_.set("dropout", configuration_.model.dropout);
  if (configuration_.model.attention_dropout > 0)
    scalars_.set("attention_dropout", configuration_.model.attention_dropout);
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::set_scalar(std::string_view name, double value) {
  if (name == "learning_rate" || name == "step")
    throw ReplayContractError(fmt::format(
        "{}: '{}' is set by each step: the learning rate is step()'s argument", graph::rule_scalar.id, name));
  require_scalar_in_range(name, value);
  scalars_.set(name, value);
}

template <class Space, class T, class G>
StepResult DeviceTrainer<Space, T, G>::run_step(double learning_rate, bool eagerly) {
  return backend::as_one(device_.watch(), [&] {
    StepResult result = run_step(learning_rate, *current_->executor, eagerly);
    return result.over_budget ? step_over_budget(learning_rate, std::move(result), eagerly) : result;
  });
}

template <class Space, class T, class G>
StepResult DeviceTrainer<Space, T, G>::run_step(double learning_rate, graph::Executor<Space>& executor,
                                                bool eagerly) {
  const auto start = std::chrono::steady_clock::now();
  auto& stream = device_.stream();
  const backend::Region region(stream, backend::RegionKind::step);
  if (backend::JobWatch* const watch = device_.watch()) watch->progress(steps_done_ + 1);
  scalars_.set("learning_rate", learning_rate);
  scalars_.set("step", static_cast<double>(steps_done_ + 1));
  scalars_.upload(stream);

  StepResult result{};
  step_begin_.record(stream);
  result.report = eagerly ? executor.step_eagerly() : executor.step();
  step_end_.record(stream);
  stream.copy_to_host(metrics_staging_.data(), metrics_.data(), metrics_.bytes(), "metrics");
  metrics_copied_.record(stream);
  backend::wait(metrics_copied_, stream, device_.watch());

  tuning_.save();

  std::array<double, all_metrics> values{};
  std::memcpy(values.data(), metrics_staging_.data(), metrics_staging_.bytes());
  const auto value = [&](Metric of) { return values[static_cast<std::size_t>(of)]; };
  result.step = ++steps_done_;
  ++steps_here_;
  result.loss = value(Metric::loss);
  result.gradient_norm = value(Metric::gradient_norm);
  result.balance_loss = value(Metric::balance_loss);
  result.router_z_loss = value(Metric::z_loss);
  result.over_budget = value(Metric::over_budget) > 0;
  if (configuration_.model.topk > 0) {
    // A capacity is one of each rank's own tokens; rows without it are those of the tokens of all ranks.
    const std::int64_t sources =
        configuration_.train.expert_capacity > 0 ? 1 : configuration_.parallel.expert;
    result.expert_rows_needed =
        value(Metric::rows_needed) / static_cast<double>(current_->shape.sequences * current_->shape.tokens *
                                                         configuration_.model.topk * sources);
  }
  const double skip_above = scalars_.get("skip_above");
  result.skipped = skip_above > 0 && !(result.gradient_norm <= skip_above);
  result.tokens = batch_shape_.elements();
  result.computed_tokens = current_->shape.elements();
  result.device_milliseconds = backend::Event<Space>::milliseconds(step_begin_, step_end_);
  result.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

template <class Space, class T, class G>
StepResult DeviceTrainer<Space, T, G>::step(double learning_rate) {
  const std::int64_t every = configuration_.graph.validate_every;
  const bool validates = every > 0 && (steps_done_ + 1) % every == 0;
  StepResult result = validates ? validated_step(learning_rate) : run_step(learning_rate, false);
  if (!eager_reason_.empty()) {
    // A step over budget has counted already.
    if (configuration_.graph.impl != GraphImplementation::none && !result.over_budget)
      ++result.report.fallbacks;
    result.eager_reason = result.over_budget ? eager_reason_ + "; " + result.eager_reason : eager_reason_;
  } else if (result.report.mode == graph::StepMode::eager && result.eager_reason.empty()) {
    result.eager_reason = current_->executor->refusal();
  }
  ++lengths_.steps;
  if (result.report.mode != graph::StepMode::eager) ++lengths_.replayed;
  lengths_.tokens += result.tokens;
  lengths_.computed_tokens += result.computed_tokens;
  return result;
}

template <class Space, class T, class G>
TuningSummary DeviceTrainer<Space, T, G>::tuning() const {
  if (!tuning_.cache()) return {};
  const backend::TuningReport report = device_.blas().tuning_report();
  TuningSummary summary{report.measured, report.taken,
                        tuning_.cache()->size_beside(device_.blas().tuning_machine()), report.seconds,
                        tuning_.note()};
  const auto add = [&](std::size_t count, std::string_view what) {
    if (count > 0) summary.note += fmt::format("{}{} {}", summary.note.empty() ? "" : "; ", count, what);
  };
  add(report.unknown,
      "products were measured again, since the library does not offer the algorithm of the file");
  add(report.without_room, "products were not measured for want of memory");
  return summary;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::recapture() {
  for (const auto& shaped : recorded_)
    if (shaped->executor) shaped->executor->recapture();
  if (evaluation_) evaluation_->executor->recapture();
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::reset_graphs() {
  for (const auto& shaped : recorded_)
    if (shaped->executor) shaped->executor->reset();
  if (evaluation_) evaluation_->executor->reset();
}

template <class Space>
std::unique_ptr<Trainer> make_device_trainer(const Configuration& configuration, const RankGroups& groups) {
  using backend::bfloat16;
  const TrainConfiguration& train = configuration.train;
  if (train.precision == Precision::fp32)
    return std::make_unique<DeviceTrainer<Space, float, float>>(configuration, groups);
  if (train.gradient_type == Precision::bf16)
    return std::make_unique<DeviceTrainer<Space, bfloat16, bfloat16>>(configuration, groups);
  return std::make_unique<DeviceTrainer<Space, bfloat16, float>>(configuration, groups);
}

}  // namespace encore::model
