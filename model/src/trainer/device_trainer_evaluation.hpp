// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer_batches.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/contract_rules.hpp>

#include <fmt/format.h>

namespace encore::model {

template <class Space, class T, class G>
struct DeviceTrainer<Space, T, G>::Evaluation {
  StepProgram<Space> step;
  graph::MemoryPlan plan;
  backend::Allocation<Space> arena, logits, batch;
  graph::Bindings bindings;
  std::unique_ptr<graph::Executor<Space>> executor;
};

template <class Space, class T, class G>
auto DeviceTrainer<Space, T, G>::evaluation() -> Evaluation& {
  if (evaluation_) return *evaluation_;
  const TrainConfiguration& train = configuration_.train;
  StepProgram<Space> step = build_step_program<Space, T, G>(device_, configuration_.model, layout_,
                                                            {1, train.microbatch, train.seq, false});
  graph::MemoryPlan plan = graph::plan_memory(step.program.outline());
  graph::Bindings bindings(step.program.outline());
  graph::audit(step.program.outline(), plan);
  auto made = std::make_unique<Evaluation>(
      Evaluation{std::move(step), std::move(plan), {}, {}, {}, std::move(bindings), nullptr});
  Evaluation& e = *made;
  const graph::Outline& outline = e.step.program.outline();
  // Of a pipeline only the last stage has logits.
  const std::size_t logits_bytes = e.step.logits.empty() ? 0 : outline.buffer(e.step.logits.at(0)).bytes();
  require_memory_for_evaluation(e.plan.arena_bytes + logits_bytes + 2 * outline.buffer(e.step.ids).bytes());
  e.arena = backend::Allocation<Space>("evaluation arena", e.plan.arena_bytes);
  e.logits = backend::Allocation<Space>("logits", logits_bytes);
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
  if (!e.step.logits.empty()) e.bindings.bind(e.step.logits.at(0), e.logits.data());
  if (e.step.expert_bias) e.bindings.bind(*e.step.expert_bias, expert_bias_.data());
  e.bindings.bind_arena(e.plan, e.arena.data());
  e.bindings.bind_parts(outline);
  // A graph of its own: training's graphs, buffers and random positions stay as they are.
  graph::CapturePolicy policy = policy_of(configuration_.graph);
  policy.optimizer = graph::OptimizerCapture::eager;
  policy.warmup_steps = 0;
  e.executor = std::make_unique<graph::Executor<Space>>(device_, e.step.program, e.bindings, policy);
  evaluation_ = std::move(made);
  return *evaluation_;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::require_memory_for_evaluation(std::size_t bytes) const {
  const auto limit = static_cast<std::size_t>(configuration_.graph.memory_limit);
  if (limit > 0 && allocated_bytes_ + bytes > limit)
    throw OutOfMemoryError(fmt::format(
        "{}: evaluating needs {} bytes beside the {} of training and graph.memory_limit allows {}: raise "
        "it, or evaluate with a trainer of its own",
        graph::rule_memory.id, bytes, allocated_bytes_, limit));
}

template <class Space, class T, class G>
double DeviceTrainer<Space, T, G>::evaluate(std::span<const std::int32_t> ids,
                                            std::span<const std::int32_t> labels) {
  Evaluation& e = evaluation();
  auto& stream = device_.stream();
  const backend::Region region(stream, backend::RegionKind::evaluation);
  const std::size_t bytes = e.step.program.outline().buffer(e.step.ids).bytes();
  check_tokens(ids, labels, bytes / sizeof(std::int32_t));
  stream.copy_to_device(e.batch.data(), ids.data(), bytes, "evaluation ids");
  const std::vector<std::int32_t> own_labels = impl::without_padding_label(labels);
  stream.copy_to_device(e.batch.data() + bytes, own_labels.data(), bytes, "evaluation labels");
  e.executor->step();
  double loss = 0;
  stream.copy_to_host(&loss, e.batch.data() + 2 * bytes, sizeof loss, "evaluation loss");
  backend::synchronize(stream, "evaluation", device_.watch());
  return loss;
}

template <class Space, class T, class G>
std::vector<float> DeviceTrainer<Space, T, G>::logits() {
  Evaluation& e = evaluation();
  if (e.step.logits.empty())
    throw ConfigurationError(
        fmt::format("stage {} of {} has no logits: ask a rank of the last stage for them",
                    layout_.shard().place.stage, layout_.shard().layout.stages()));
  auto& stream = device_.stream();
  if (device_.is_in(name_of(RankGroup::tensor))) return logits_of_tensor_ranks();
  std::vector<std::byte> bytes(e.logits.bytes());
  stream.copy_to_host(bytes.data(), e.logits.data(), bytes.size(), "logits");
  backend::synchronize(stream, "logits", device_.watch());
  return to_float(bytes, backend::data_type_of<T>);
}

/// Each has the logits of a part of the vocabulary, the first ones the largest.
template <class Space, class T, class G>
std::vector<float> DeviceTrainer<Space, T, G>::logits_of_tensor_ranks() {
  const Evaluation& e = evaluation();
  auto& stream = device_.stream();
  const ModelShard& shard = layout_.shard();
  const std::int64_t ranks = shard.layout.tensor(), vocabulary = configuration_.model.vocab;
  const std::int64_t tokens = e.step.program.outline().buffer(e.step.ids).elements();
  const auto part_of = [&](std::int64_t rank) { return share_of(vocabulary, ranks, rank); };
  const auto part = static_cast<std::size_t>(tokens * part_of(0).size());
  const backend::Allocation<Space> memory("logits of all ranks",
                                          static_cast<std::size_t>(ranks) * part * sizeof(T));
  auto* const all = reinterpret_cast<T*>(memory.data());
  T* const own = all + static_cast<std::size_t>(shard.place.tensor) * part;
  stream.copy(own, e.logits.data(), e.logits.bytes(), "logits");
  device_.communicator(name_of(RankGroup::tensor))
      .template all_gather<T>(stream, "encore::tensor::logits", backend::Vector<const T, Space>(own, part),
                              backend::Vector<T, Space>(all, static_cast<std::size_t>(ranks) * part));
  std::vector<std::byte> bytes(memory.bytes());
  stream.copy_to_host(bytes.data(), memory.data(), bytes.size(), "logits");
  backend::synchronize(stream, "logits", device_.watch());
  const std::vector<float> parts = to_float(bytes, backend::data_type_of<T>);
  std::vector<float> whole(static_cast<std::size_t>(tokens * vocabulary));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Stretch columns = part_of(rank);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto row = parts.begin() + static_cast<std::ptrdiff_t>(part) * rank + token * columns.size();
      std::copy(row, row + columns.size(), whole.begin() + token * vocabulary + columns.begin);
    }
  }
  return whole;
}

}  // namespace encore::model
