// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/memory_plan.hpp>
#include <encore/graph/program.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace encore::graph {

/// What every named buffer of a program holds at one moment, copied to the host, with the random positions. Of the
/// activations those that are still whole at the end of a step. For taking a step back, and for comparing two runs
/// of it.
class Snapshot {
 public:
  /// Waits for the device. Not while recording.
  template <class Space>
  static Snapshot take(backend::Device<Space>& device, const Outline& outline, const MemoryPlan& plan,
                       const Bindings& bindings);

  /// Puts back what a step takes over from the steps before it: parameters, gradients, optimizer state, state,
  /// metrics and random positions. Waits for the device.
  template <class Space>
  void restore(backend::Device<Space>& device, const Outline& outline, const Bindings& bindings) const;

  /// Of a buffer or a part of one; empty for an activation that was overwritten.
  std::span<const std::byte> bytes(const Outline& outline, BufferId id) const;
  const std::vector<backend::RandomState>& random() const { return random_; }

 private:
  std::vector<std::vector<std::byte>> buffers_;  ///< by buffer id; empty for parts
  std::vector<backend::RandomState> random_;
};

/// The first named buffer in which the two differ, as a clause ("3 of 64 elements of layer.0/attn/qkv.weight differ,
/// the first at 17"). Empty when every bit is the same. `ignored` buffers are left out.
std::string first_difference(const Outline& outline, const Snapshot& left, const Snapshot& right,
                             const std::vector<BufferId>& ignored = {});

}  // namespace encore::graph
