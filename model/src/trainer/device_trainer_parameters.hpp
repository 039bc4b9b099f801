// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"
#include "initial_weights.hpp"

#include <encore/backend/error.hpp>

// Reading and writing the arrays of parameters, and resuming.

namespace encore::model {

template <class Space, class T, class G>
std::optional<backend::DataType> DeviceTrainer<Space, T, G>::type_of(ParameterArray array) const {
  const graph::Outline& outline = main_->outline();
  switch (array) {
    case ParameterArray::weights: return outline.buffer(main_->step.parameters).type;
    case ParameterArray::gradients: return outline.buffer(*main_->step.gradients).type;
    case ParameterArray::first_moment: return outline.buffer(*main_->step.first_moment).type;
    case ParameterArray::second_moment: return outline.buffer(*main_->step.second_moment).type;
    case ParameterArray::master:
      if (main_->step.master) return outline.buffer(*main_->step.master).type;
      break;
    case ParameterArray::expert_bias:
      if (main_->step.expert_bias) return outline.buffer(*main_->step.expert_bias).type;
      break;
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
    case ParameterArray::expert_bias: return expert_bias_.data();
  }
  return nullptr;
}

template <class Space, class T, class G>
std::int64_t DeviceTrainer<Space, T, G>::elements_of(ParameterArray array) const {
  if (array != ParameterArray::expert_bias) return layout_.elements();
  return main_->step.expert_bias ? main_->outline().buffer(*main_->step.expert_bias).elements() : 0;
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

/// The distances in memory where a box' elements lie one behind the other.
inline kernels::BoxShape packed(const ParameterBox& box) {
  kernels::BoxShape shape = shape_of(box);
  shape.to = {shape.extents[1] * shape.extents[2], shape.extents[2], 1};
  return shape;
}

template <class Space, class T, class G>
std::vector<std::byte> DeviceTrainer<Space, T, G>::read(ParameterArray array, const ParameterBox& box) {
  const auto type = type_of(array);
  if (!type) throw InternalError("the trainer has no such array of parameters");
  const std::size_t size = backend::size_of(*type);
  std::vector<std::byte> bytes(static_cast<std::size_t>(box.elements()) * size);
  auto& stream = device_.stream();
  const backend::Allocation<Space> memory("reading parameters", bytes.size());
  kernels::copy_box<Space>(stream, address(array) + static_cast<std::size_t>(box.offset) * size,
                           memory.data(), packed(box), *type);
  stream.copy_to_host(bytes.data(), memory.data(), bytes.size(), "reading parameters");
  stream.synchronize("reading parameters");
  return bytes;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::write(ParameterArray array, const ParameterBox& box,
                                       std::span<const std::byte> bytes) {
  const auto type = type_of(array);
  if (!type) throw InternalError("the trainer has no such array of parameters");
  const std::size_t size = backend::size_of(*type);
  if (bytes.size() != static_cast<std::size_t>(box.elements()) * size)
    throw InternalError("'" + box.name + "' was given in another size");
  auto& stream = device_.stream();
  const backend::Allocation<Space> memory("writing parameters", bytes.size());
  stream.copy_to_device(memory.data(), bytes.data(), bytes.size(), "writing parameters");
  kernels::copy_box<Space>(stream, memory.data(),
                           address(array) + static_cast<std::size_t>(box.offset) * size,
                           packed(box).reversed(), *type);
  stream.synchronize("writing parameters");
}

template <class Space, class T, class G>
template <class Place>
void DeviceTrainer<Space, T, G>::set_weights_at(const Place& place, std::span<const float> values) {
  const std::vector<T> weights = [&] {
    std::vector<T> converted;
    converted.reserve(values.size());
    for (const float value : values) converted.push_back(static_cast<T>(value));
    return converted;
  }();
  write(ParameterArray::weights, place, std::as_bytes(std::span(weights)));
  if (!main_->step.master) return;
  const std::vector<Accumulator<T>> master(values.begin(), values.end());
  write(ParameterArray::master, place, std::as_bytes(std::span(master)));
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::set_weights(const ParameterSlice& slice, std::span<const float> values) {
  set_weights_at(slice, values);
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::set_weights(const ParameterBox& box, std::span<const float> values) {
  set_weights_at(box, values);
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

}  // namespace encore::model
