// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/event.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/stream.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace encore::graph {

/// Uploads that may be on their way to the device at a time.
inline constexpr std::size_t scalar_slots = 8;

/// Named float64 numbers in device memory that kernels read through pointers, so that what changes from step
/// to step (learning rate, step number, ...) is never baked into a recording.
template <class Space>
class Scalars {
 public:
  /// `fixed`: names that someone may take for scalars, and why a recording cannot re-read them.
  Scalars(backend::Stream<Space>& stream, std::vector<std::string> names,
          std::map<std::string, std::string, std::less<>> fixed = {});

  /// Takes effect with the next upload. Throws ReplayContractError for another name, with the known ones, and for one
  /// that is fixed, with the reason.
  void set(std::string_view name, double value);
  double get(std::string_view name) const;
  /// Device address, fixed for the object's life.
  const double* device(std::string_view name) const;
  std::byte* device_data() const { return device_.data(); }
  const std::vector<std::string>& names() const { return names_; }

  /// Queues one copy of all values to the device, ahead of the kernels queued after it. Waits only when
  /// `slots` earlier uploads are still under way. Not inside a recorded run.
  void upload(backend::Stream<Space>& stream);

 private:
  static constexpr std::size_t slots = scalar_slots;
  std::size_t index(std::string_view name) const;

  std::vector<std::string> names_;
  std::map<std::string, std::string, std::less<>> fixed_;
  std::vector<double> values_;
  backend::Allocation<Space> device_;
  backend::StagingAllocation<Space> staging_;
  std::vector<backend::Event<Space>> copied_;
  std::size_t next_slot_ = 0;
};

}  // namespace encore::graph
