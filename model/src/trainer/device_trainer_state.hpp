// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"

#include <encore/backend/error.hpp>
#include <encore/kernels/checksum.hpp>

// Keeping the training state, and going back to it.

namespace encore::model {

namespace impl {

/// Each array beside the trainer's own, on the device where there is room and else on the host.
template <class Space>
struct DeviceState final : SavedState {
  struct Array {
    backend::Allocation<Space> device;
    std::vector<std::byte> host;
  };
  std::vector<Array> arrays;
  std::vector<backend::RandomState> random;
};

}  // namespace impl

template <class Space, class T, class G>
std::vector<std::uint64_t> DeviceTrainer<Space, T, G>::state_checksums() {
  constexpr std::size_t arrays = all_parameter_arrays.size();
  backend::Allocation<Space> rows("state checksums", arrays * sizeof(kernels::Checksum));
  backend::Allocation<Space> slot("state checksums", sizeof(std::int64_t));
  auto& stream = device_.stream();
  stream.clear(rows.data(), rows.bytes(), "state checksums");
  stream.clear(slot.data(), slot.bytes(), "state checksums");
  for (std::size_t i = 0; i < arrays; ++i) {
    const auto type = type_of(all_parameter_arrays[i]);
    if (!type) continue;
    const kernels::ChecksumPart part{address(all_parameter_arrays[i]), elements_of(all_parameter_arrays[i]),
                                     *type};
    kernels::checksum<Space>(stream, std::span(&part, 1), reinterpret_cast<const std::int64_t*>(slot.data()),
                             reinterpret_cast<kernels::Checksum*>(rows.data()), static_cast<std::int64_t>(i),
                             static_cast<std::int64_t>(arrays));
  }
  std::vector<std::uint64_t> checksums(rows.bytes() / sizeof(std::uint64_t));
  stream.copy_to_host(checksums.data(), rows.data(), rows.bytes(), "state checksums");
  stream.synchronize("state checksums");
  return checksums;
}

template <class Space, class T, class G>
std::unique_ptr<SavedState> DeviceTrainer<Space, T, G>::save_state() {
  auto& stream = device_.stream();
  auto state = std::make_unique<impl::DeviceState<Space>>();
  state->steps_done = steps_done_;
  state->checksums = state_checksums();
  state->random = device_.random().snapshot(stream);
  for (const backend::RandomState& random : state->random)
    state->positions.push_back({random.seed, random.offset});
  for (const ParameterArray array : all_parameter_arrays) {
    const auto type = type_of(array);
    auto& copy = state->arrays.emplace_back();
    if (!type) continue;
    const std::size_t bytes = static_cast<std::size_t>(elements_of(array)) * backend::size_of(*type);
    // Half of what is free is left to whoever else needs some.
    if (bytes < backend::available_memory<Space>() / 2) {
      copy.device = backend::Allocation<Space>("saved state", bytes);
      stream.copy(copy.device.data(), address(array), bytes, "saving the state");
    } else {
      copy.host.resize(bytes);
      stream.copy_to_host(copy.host.data(), address(array), bytes, "saving the state");
    }
  }
  stream.synchronize("saving the state");
  return state;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::restore_state(const SavedState& saved) {
  const auto* state = dynamic_cast<const impl::DeviceState<Space>*>(&saved);
  if (state == nullptr) throw InternalError("a state was given back to a trainer that did not save it");
  auto& stream = device_.stream();
  for (std::size_t i = 0; i < state->arrays.size(); ++i) {
    const auto& copy = state->arrays[i];
    std::byte* const to = address(all_parameter_arrays[i]);
    if (copy.device.bytes() > 0)
      stream.copy(to, copy.device.data(), copy.device.bytes(), "restoring the state");
    else if (!copy.host.empty())
      stream.copy_to_device(to, copy.host.data(), copy.host.size(), "restoring the state");
  }
  device_.random().restore(stream, state->random);
  steps_done_ = state->steps_done;
  stream.synchronize("restoring the state");
}

}  // namespace encore::model
