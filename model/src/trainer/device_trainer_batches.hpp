// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/contract_rules.hpp>
#include <encore/graph/length_buckets.hpp>
#include <encore/kernels/live_tokens.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

// Batches of different shapes: which program takes which, and how they are padded.

namespace encore::model {

namespace impl {

/// What the label of padding becomes where a caller gave it to a token; any negative one is ignored.
inline constexpr std::int32_t ignored_label = -100;

/// Labels of which none says that its token is padding: that is for the trainer to say.
inline std::vector<std::int32_t> without_padding_label(std::span<const std::int32_t> labels) {
  std::vector<std::int32_t> result(labels.begin(), labels.end());
  std::ranges::replace(result, kernels::padding_label, ignored_label);
  return result;
}

/// Copies rows of `tokens` numbers into rows of `length`, and fills what is left.
inline void copy_padded(std::span<const std::int32_t> values, std::int64_t tokens, std::int64_t length,
                        std::int32_t filling, std::int32_t* to) {
  const std::int64_t rows = std::ssize(values) / tokens;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int32_t* end = std::copy_n(values.data() + row * tokens, tokens, to + row * length);
    std::fill_n(end, length - tokens, filling);
  }
}

}  // namespace impl

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::prepare_shapes() {
  const TrainConfiguration& train = configuration_.train;
  for (const std::int64_t length : planned_lengths(configuration_)) {
    recorded_.push_back(make_shaped_step<Space, T, G>(device_, configuration_, layout_,
                                                      {train.microbatches, train.microbatch, length}));
    arena_bytes_ = std::max(arena_bytes_, recorded_.back()->plan.arena_bytes);
  }
  main_ = current_ = recorded_.front().get();
  batch_shape_ = main_->shape;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::make_executor(Shaped& shaped, bool captures) {
  graph::CapturePolicy policy = captures ? policy_of(configuration_.graph) : graph::CapturePolicy{};
  // The warm-up is the trainer's: a further shape is recorded at once after it.
  policy.warmup_steps = std::max<std::int64_t>(0, policy.warmup_steps - steps_here_);
  shaped.executor = std::make_unique<graph::Executor<Space>>(device_, shaped.step.program,
                                                             bind(shaped, arena_.data()), policy);
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
void DeviceTrainer<Space, T, G>::require_shape(const BatchShape& shape) const {
  const TrainConfiguration& train = configuration_.train;
  std::string wrong;
  const auto add = [&](const graph::ContractRule& rule, const std::string& clause) {
    wrong += fmt::format("{}{}: {}", wrong.empty() ? "" : "; ", rule.id, clause);
  };
  const bool recaptures = configuration_.graph.recapture;
  if (shape.microbatches != train.microbatches && !recaptures)
    add(graph::rule_microbatches, fmt::format("the batch has {} microbatches and train.microbatches is {}",
                                              shape.microbatches, train.microbatches));
  if (shape.sequences != train.microbatch && !recaptures)
    add(graph::rule_buffer, fmt::format("a microbatch has {} sequences and train.microbatch is {}",
                                        shape.sequences, train.microbatch));
  if (shape.tokens > train.seq)
    add(graph::rule_length,
        fmt::format("a sequence has {} tokens and train.seq is {}", shape.tokens, train.seq));
  const auto& buckets = configuration_.graph.buckets;
  if (configuration_.graph.above_largest == AboveLargest::refuse && !buckets.empty() &&
      shape.tokens > buckets.back())
    add(graph::rule_length, fmt::format("a sequence has {} tokens and the largest of graph.buckets is {}",
                                        shape.tokens, buckets.back()));
  if (shape.microbatches < 1 || shape.sequences < 1 || shape.tokens < 1)
    add(graph::rule_buffer, fmt::format("the batch is empty: {} microbatches of {} sequences of {} tokens",
                                        shape.microbatches, shape.sequences, shape.tokens));
  if (wrong.empty() && shape.elements() > train.microbatches * train.microbatch * train.seq)
    add(graph::rule_memory, fmt::format("the batch has {} tokens and memory was planned for {}",
                                        shape.elements(), train.microbatches * train.microbatch * train.seq));
  if (!wrong.empty()) throw ReplayContractError(wrong);
}

template <class Space, class T, class G>
LengthStatistics DeviceTrainer<Space, T, G>::length_statistics() const {
  LengthStatistics statistics = lengths_;
  statistics.recorded_lengths = std::ranges::count_if(
      recorded_, [](const auto& shaped) { return shaped->executor && shaped->executor->graphs() > 0; });
  return statistics;
}

template <class Space, class T, class G>
auto DeviceTrainer<Space, T, G>::find_recorded(const BatchShape& shape) const -> Shaped* {
  const auto found = std::ranges::find_if(recorded_, [&](const auto& each) { return each->shape == shape; });
  return found == recorded_.end() ? nullptr : found->get();
}

/// The program of just this shape.
template <class Space, class T, class G>
auto DeviceTrainer<Space, T, G>::exact(const BatchShape& shape, bool records) -> Shaped& {
  if (!records && passing_ && passing_->shape == shape) return *passing_;
  auto shaped = make_shaped_step<Space, T, G>(device_, configuration_, layout_, shape);
  const auto require_room = [&](std::size_t needed, std::size_t bytes) {
    if (needed > bytes)
      throw OutOfMemoryError(fmt::format(
          "{}: {} microbatches of {} sequences of {} tokens need {} bytes where {} "
          "were planned: set train.seq or train.microbatches for them",
          graph::rule_memory.id, shape.microbatches, shape.sequences, shape.tokens, needed, bytes));
  };
  require_room(shaped->plan.arena_bytes, arena_.bytes());
  require_room(2 * shaped->outline().buffer(shaped->step.ids).bytes(), batch_.bytes());
  if (shaped->boundaries)
    require_room(shaped->outline().buffer(shaped->boundaries->ring).bytes(), ring_.bytes());
  make_executor(*shaped, records);
  if (records) return *recorded_.emplace_back(std::move(shaped));
  device_.stream().synchronize("another batch shape");  // The program that goes may still be running.
  passing_ = std::move(shaped);
  return *passing_;
}

template <class Space, class T, class G>
auto DeviceTrainer<Space, T, G>::choose(const BatchShape& shape) -> Choice {
  const GraphConfiguration& graph = configuration_.graph;
  BatchShape padded = shape;
  if (!graph.buckets.empty()) {
    const auto bucket = graph::bucket_for(shape.tokens, graph.buckets);
    if (!bucket) {
      return {exact(shape, false),
              fmt::format("{}: a sequence of {} tokens is longer than the largest of graph.buckets, {}",
                          graph::rule_length.id, shape.tokens, graph.buckets.back())};
    }
    padded.tokens = *bucket;
  }
  Shaped* found = find_recorded(padded);
  if (found != nullptr) {
    if (!found->executor) make_executor(*found, true);
    return {*found, {}};
  }
  if (graph.impl == GraphImplementation::none) return {exact(shape, false), {}};
  // The main shape has a place even when it was never used.
  if (std::ssize(recorded_) < graph.recordings) return {exact(padded, true), {}};
  return {exact(shape, false), fmt::format("{}: all {} of graph.recordings are taken by other lengths",
                                           graph::rule_recordings.id, graph.recordings)};
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::set_batch(std::span<const std::int32_t> ids,
                                           std::span<const std::int32_t> labels) {
  const TrainConfiguration& train = configuration_.train;
  set_batch(ids, labels, {train.microbatches, train.microbatch, train.seq});
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::set_batch(std::span<const std::int32_t> ids,
                                           std::span<const std::int32_t> labels, const BatchShape& shape) {
  const backend::Region region(device_.stream(), backend::RegionKind::data);
  require_shape(shape);
  check_tokens(ids, labels, static_cast<std::size_t>(shape.elements()));
  const Choice choice = choose(shape);
  Shaped& chosen = choice.shaped;
  const std::size_t half = batch_.bytes() / 2;
  std::byte* slot = batch_staging_.data() + next_batch_slot_ * batch_.bytes();
  batch_copied_[next_batch_slot_].wait(device_.stream());
  const std::int64_t length = chosen.shape.tokens;
  impl::copy_padded(ids, shape.tokens, length, 0, reinterpret_cast<std::int32_t*>(slot));
  impl::copy_padded(impl::without_padding_label(labels), shape.tokens, length, kernels::padding_label,
                    reinterpret_cast<std::int32_t*>(slot + half));
  device_.stream().copy_to_device(batch_.data(), slot, batch_.bytes(), "batch");
  batch_copied_[next_batch_slot_].record(device_.stream());
  next_batch_slot_ = (next_batch_slot_ + 1) % batch_slots;
  current_ = &chosen;
  eager_reason_ = choice.eager_reason;
  batch_shape_ = shape;
}

}  // namespace encore::model
