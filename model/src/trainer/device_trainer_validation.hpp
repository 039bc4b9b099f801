// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/snapshot.hpp>

#include <fmt/format.h>

#include <cstring>

// Replays compared with eager runs of the same step, and what the boundary checksums say.

namespace encore::model {

namespace impl {

/// The rows of the step done last, out of the whole ring.
inline std::vector<kernels::Checksum> last_checksums(std::span<const std::byte> ring,
                                                     std::span<const std::byte> slot, std::size_t rows) {
  constexpr std::int64_t slots = graph::checksum_slots;
  std::int64_t next = 0;
  std::memcpy(&next, slot.data(), sizeof next);
  const auto last = static_cast<std::size_t>((next + slots - 1) % slots);
  std::vector<kernels::Checksum> checksums(rows);
  const std::size_t bytes = rows * sizeof(kernels::Checksum);
  std::memcpy(checksums.data(), ring.data() + last * bytes, bytes);
  return checksums;
}

}  // namespace impl

template <class Space, class T, class G>
graph::Snapshot DeviceTrainer<Space, T, G>::take_snapshot() const {
  return graph::Snapshot::take(device_, current_->outline(), current_->plan, current_->executor->bindings());
}

template <class Space, class T, class G>
std::string DeviceTrainer<Space, T, G>::difference(const graph::Snapshot& replay,
                                                   const graph::Snapshot& eager) const {
  const graph::Outline& outline = current_->outline();
  if (!current_->boundaries) return graph::first_difference(outline, replay, eager);
  const StepBoundaries& boundaries = *current_->boundaries;
  const auto checksums = [&](const graph::Snapshot& snapshot) {
    return impl::last_checksums(snapshot.bytes(outline, boundaries.ring),
                                snapshot.bytes(outline, boundaries.slot), boundaries.names.size());
  };
  std::string first = graph::first_difference(boundaries.names, checksums(replay), checksums(eager));
  return first.empty() ? graph::first_difference(outline, replay, eager, {boundaries.ring}) : first;
}

template <class Space, class T, class G>
StepResult DeviceTrainer<Space, T, G>::validated_step(double learning_rate) {
  const graph::Snapshot before = take_snapshot();
  StepResult result = run_step(learning_rate, false);
  // Ranks do the step again together, or none does.
  if (largest_of_ranks(result.report.mode == graph::StepMode::eager ? 1 : 0) != 0) return result;
  const graph::Snapshot replay = take_snapshot();
  before.restore(device_, current_->outline(), current_->executor->bindings());
  --steps_done_;
  --steps_here_;
  run_step(learning_rate, true);
  const std::string found = difference(replay, take_snapshot());
  if (!found.empty())
    throw ValidationError(fmt::format(
        "step {}: replay and eager run from the same state are not the same: {}; the eager step was kept",
        result.step, found));
  result.validated = true;
  return result;
}

template <class Space, class T, class G>
std::string DeviceTrainer<Space, T, G>::first_bad_boundary() {
  if (!current_->boundaries || steps_here_ == 0) return {};
  std::vector<std::byte> ring(ring_.bytes()), slot(slot_.bytes());
  device_.stream().copy_to_host(ring.data(), ring_.data(), ring.size(), "boundary checksums");
  device_.stream().copy_to_host(slot.data(), slot_.data(), slot.size(), "boundary slot");
  device_.stream().synchronize("boundary checksums");
  const auto& names = current_->boundaries->names;
  return graph::first_non_finite(names, impl::last_checksums(ring, slot, names.size()));
}

}  // namespace encore::model
