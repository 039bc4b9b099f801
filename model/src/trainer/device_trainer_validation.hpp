// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <cstring>

// Replays compared with eager runs of the same step, and what the boundary checksums say.

namespace encore::model {

template <class Space, class T, class G>
struct DeviceTrainer<Space, T, G>::Snapshot {
  std::vector<std::vector<std::byte>>
      buffers;  ///< by buffer id; empty for parts and for activations that are gone
  std::vector<backend::RandomState> random;
  std::vector<kernels::Checksum> checksums;
};

namespace impl {

/// What a step takes over from the steps before it.
inline bool is_lasting(graph::BufferKind kind) {
  using enum graph::BufferKind;
  return kind == parameter || kind == optimizer_state || kind == gradient || kind == state;
}

/// A clause, or nothing when every bit is the same.
inline std::string difference(const graph::Buffer& buffer, const std::byte* left, const std::byte* right) {
  if (std::memcmp(left, right, buffer.bytes()) == 0) return {};
  const std::size_t size = backend::size_of(buffer.type);
  std::int64_t differing = 0, first = -1;
  for (std::int64_t element = 0; element < buffer.elements(); ++element) {
    const std::size_t at = static_cast<std::size_t>(element) * size;
    if (std::memcmp(left + at, right + at, size) == 0) continue;
    if (first < 0) first = element;
    ++differing;
  }
  return fmt::format("{} of {} elements of '{}' differ, the first at {}", differing, buffer.elements(),
                     buffer.name, first);
}

}  // namespace impl

template <class Space, class T, class G>
auto DeviceTrainer<Space, T, G>::take_snapshot(const Shaped& shaped) const -> Snapshot {
  const graph::Outline& outline = shaped.outline();
  Snapshot snapshot;
  snapshot.buffers.resize(outline.buffers().size());
  const auto copy = [&](graph::BufferId id) {
    auto& bytes = snapshot.buffers[static_cast<std::size_t>(id)];
    bytes.resize(outline.buffer(id).bytes());
    device_.stream().copy_to_host(bytes.data(), shaped.executor->alias(id), bytes.size(), "validation");
  };
  for (std::size_t i = 0; i < outline.buffers().size(); ++i) {
    const graph::Buffer& buffer = outline.buffers()[i];
    const auto id = static_cast<graph::BufferId>(i);
    const bool is_ring = shaped.boundaries && id == shaped.boundaries->ring;
    if (!buffer.part && buffer.kind != graph::BufferKind::activation && !is_ring) copy(id);
  }
  for (const graph::BufferId id : graph::activations_left(outline, shaped.plan)) copy(id);
  device_.stream().synchronize("validation");
  snapshot.random = device_.random().snapshot(device_.stream());
  if (shaped.boundaries) snapshot.checksums = checksums_of_last_step(shaped);
  return snapshot;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::write_snapshot(const Shaped& shaped, const Snapshot& snapshot) {
  const graph::Outline& outline = shaped.outline();
  for (std::size_t i = 0; i < outline.buffers().size(); ++i) {
    const graph::Buffer& buffer = outline.buffers()[i];
    if (buffer.part || !impl::is_lasting(buffer.kind)) continue;
    device_.stream().copy_to_device(shaped.executor->alias(static_cast<graph::BufferId>(i)),
                                    snapshot.buffers[i].data(), snapshot.buffers[i].size(), "validation");
  }
  device_.random().restore(device_.stream(), snapshot.random);
  // The slot went back, and its rows have to be as the last advance left them.
  if (shaped.boundaries) device_.stream().clear(ring_.data(), ring_.bytes(), "boundary checksums");
}

template <class Space, class T, class G>
std::string DeviceTrainer<Space, T, G>::difference(const Shaped& shaped, const Snapshot& replay,
                                                   const Snapshot& eager) const {
  if (shaped.boundaries) {
    std::string first = graph::first_difference(shaped.boundaries->names, replay.checksums, eager.checksums);
    if (!first.empty()) return first;
  }
  const auto& buffers = shaped.outline().buffers();
  std::vector<bool> has_parts(buffers.size(), false);
  for (const graph::Buffer& buffer : buffers)
    if (buffer.part) has_parts[static_cast<std::size_t>(buffer.part->whole)] = true;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const graph::Buffer& buffer = buffers[i];
    const std::size_t whole = buffer.part ? static_cast<std::size_t>(buffer.part->whole) : i;
    // A parameter is named, and not the array of all of them.
    if (has_parts[i] || buffer.bytes() == 0 || replay.buffers[whole].empty()) continue;
    const std::size_t offset = buffer.part ? buffer.part->offset_bytes : 0;
    std::string found =
        impl::difference(buffer, replay.buffers[whole].data() + offset, eager.buffers[whole].data() + offset);
    if (!found.empty()) return found;
  }
  for (std::size_t i = 0; i < replay.random.size(); ++i)
    if (replay.random[i].seed != eager.random[i].seed || replay.random[i].offset != eager.random[i].offset)
      return fmt::format("the random stream '{}' stands elsewhere", device_.random().names()[i]);
  return {};
}

template <class Space, class T, class G>
StepResult DeviceTrainer<Space, T, G>::validated_step(double learning_rate) {
  const Shaped& shaped = *current_;
  const Snapshot before = take_snapshot(shaped);
  StepResult result = run_step(learning_rate, false);
  if (result.report.mode == graph::StepMode::eager) return result;
  const Snapshot replay = take_snapshot(shaped);
  write_snapshot(shaped, before);
  --steps_done_;
  --steps_here_;
  run_step(learning_rate, true);
  const std::string found = difference(shaped, replay, take_snapshot(shaped));
  if (!found.empty())
    throw ValidationError(fmt::format(
        "step {}: replay and eager run from the same state are not the same: {}; the eager step was kept",
        result.step, found));
  result.validated = true;
  return result;
}

template <class Space, class T, class G>
std::vector<kernels::Checksum> DeviceTrainer<Space, T, G>::checksums_of_last_step(
    const Shaped& shaped) const {
  constexpr std::int64_t slots = graph::CheckedProgram<Space>::slots;
  std::int64_t slot = 0;
  device_.stream().copy_to_host(&slot, slot_.data(), sizeof slot, "boundary slot");
  device_.stream().synchronize("boundary slot");
  std::vector<kernels::Checksum> checksums(shaped.boundaries->names.size());
  const auto last = static_cast<std::size_t>((slot + slots - 1) % slots);
  const std::size_t bytes = checksums.size() * sizeof(kernels::Checksum);
  device_.stream().copy_to_host(checksums.data(), ring_.data() + last * bytes, bytes, "boundary checksums");
  device_.stream().synchronize("boundary checksums");
  return checksums;
}

template <class Space, class T, class G>
std::string DeviceTrainer<Space, T, G>::first_bad_boundary() {
  if (!current_->boundaries || steps_here_ == 0) return {};
  return graph::first_non_finite(current_->boundaries->names, checksums_of_last_step(*current_));
}

}  // namespace encore::model
