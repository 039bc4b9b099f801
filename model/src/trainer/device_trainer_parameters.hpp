// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"
#include "initial_weights.hpp"
#include "random_streams.hpp"

#include "../layers/update_parts.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>
#include <array>

// Reading and writing the arrays of parameters, and resuming.

namespace encore::model {

inline ParameterBox box_of(const ParameterSlice& slice) {
  const std::int64_t elements = slice.elements();
  return {slice.name, slice.shape, 0, slice.offset, {elements}, {1}, {1}};
}

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
  if (is_sharded(array)) return optimizer_elements(layout_, configuration_.model.layers);
  if (array != ParameterArray::expert_bias) return layout_.elements();
  return main_->step.expert_bias ? main_->outline().buffer(*main_->step.expert_bias).elements() : 0;
}

template <class Space, class T, class G>
std::vector<std::byte> DeviceTrainer<Space, T, G>::read(ParameterArray array, const ParameterSlice& slice) {
  if (is_sharded(array)) return read(array, box_of(slice));
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
  if (is_sharded(array)) return write(array, box_of(slice), bytes);
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
bool DeviceTrainer<Space, T, G>::is_sharded(ParameterArray array) const {
  const bool of_optimizer = array == ParameterArray::first_moment || array == ParameterArray::second_moment ||
                            array == ParameterArray::master;
  return of_optimizer && shards_optimizer(layout_);
}

/// A stretch of an array of which each data rank has a share, whole.
template <class Space, class T, class G>
struct DeviceTrainer<Space, T, G>::Gathered {
  Stretch elements;  ///< of the whole array, in 8 bytes from a multiple of them
  UpdatePart part;   ///< that has them
  std::size_t size;  ///< bytes of an element
  std::byte* own;    ///< this rank's array
  backend::Allocation<Space> memory;

  std::byte* at(std::int64_t element) const {
    return memory.data() + static_cast<std::size_t>(element - elements.begin) * size;
  }
  /// What this rank has of it, in the array of all elements; may be empty.
  Stretch overlap() const {
    return {std::max(elements.begin, part.own.begin), std::min(elements.end, part.own.end)};
  }
  std::byte* own_at(std::int64_t element) const {
    return own + static_cast<std::size_t>(part.state_begin + element - part.own.begin) * size;
  }
  std::size_t overlap_bytes() const {
    return static_cast<std::size_t>(std::max<std::int64_t>(0, overlap().size())) * size;
  }
};

template <class Space, class T, class G>
auto DeviceTrainer<Space, T, G>::gather(ParameterArray array, const ParameterBox& box) -> Gathered {
  const std::size_t size = backend::size_of(*type_of(array));
  std::int64_t end = box.offset + 1;
  for (std::size_t i = 0; i < box.extents.size(); ++i) end += (box.extents[i] - 1) * box.strides[i];
  const std::int64_t words = 8;
  const Stretch elements{box.offset / words * words, (end + words - 1) / words * words};
  Gathered gathered{
      elements, part_with(update_parts(layout_, configuration_.model.layers), box.offset), size,
      address(array),
      backend::Allocation<Space>("state of the optimizer", static_cast<std::size_t>(elements.size()) * size)};
  auto& stream = device_.stream();
  stream.clear(gathered.memory.data(), gathered.memory.bytes(), "state of the optimizer");
  if (gathered.overlap_bytes() > 0)
    stream.copy(gathered.at(gathered.overlap().begin), gathered.own_at(gathered.overlap().begin),
                gathered.overlap_bytes(), "state of the optimizer");
  return gathered;
}

template <class Space, class T, class G>
std::vector<std::byte> DeviceTrainer<Space, T, G>::read(ParameterArray array, const ParameterBox& box) {
  const auto type = type_of(array);
  if (!type) throw InternalError("the trainer has no such array of parameters");
  const std::size_t size = backend::size_of(*type);
  std::vector<std::byte> bytes(static_cast<std::size_t>(box.elements()) * size);
  auto& stream = device_.stream();
  const backend::Allocation<Space> memory("reading parameters", bytes.size());
  const auto pack = [&](const std::byte* first) {
    kernels::copy_box<Space>(stream, first, memory.data(), packed(box), *type);
    stream.copy_to_host(bytes.data(), memory.data(), bytes.size(), "reading parameters");
    backend::synchronize(stream, "reading parameters", device_.watch());
  };
  if (!is_sharded(array)) {
    pack(address(array) + static_cast<std::size_t>(box.offset) * size);
    return bytes;
  }
  const Gathered gathered = gather(array, box);
  const std::string group(name_of(gathered.part.group));
  if (device_.is_in(group)) {
    // Whole numbers, of which one rank has some and the others zeros: sums keep every bit.
    const backend::Vector<std::int32_t, Space> words(reinterpret_cast<std::int32_t*>(gathered.memory.data()),
                                                     gathered.memory.bytes() / sizeof(std::int32_t));
    device_.communicator(group).template all_reduce<std::int32_t>(stream, "encore::data::read_state", words,
                                                                  backend::Reduction::sum);
  }
  pack(gathered.at(box.offset));
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
  const auto unpack = [&](std::byte* first) {
    kernels::copy_box<Space>(stream, memory.data(), first, packed(box).reversed(), *type);
  };
  if (is_sharded(array)) {
    const Gathered gathered = gather(array, box);
    unpack(gathered.at(box.offset));
    if (gathered.overlap_bytes() > 0)
      stream.copy(gathered.own_at(gathered.overlap().begin), gathered.at(gathered.overlap().begin),
                  gathered.overlap_bytes(), "writing parameters");
    backend::synchronize(stream, "writing parameters", device_.watch());
    return;
  }
  unpack(address(array) + static_cast<std::size_t>(box.offset) * size);
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
std::int32_t DeviceTrainer<Space, T, G>::largest_of_ranks(std::int32_t mine) {
  // Ranks that differ in several directions have a world; one direction is enough otherwise.
  const std::array groups{RankGroup::world, RankGroup::data, RankGroup::tensor, RankGroup::pipeline};
  const auto found =
      std::ranges::find_if(groups, [this](RankGroup group) { return device_.is_in(name_of(group)); });
  if (found == groups.end()) return mine;
  auto& stream = device_.stream();
  const backend::Allocation<Space> memory("a number of all ranks", sizeof mine);
  stream.copy_to_device(memory.data(), &mine, sizeof mine, "a number of all ranks");
  device_.communicator(name_of(*found))
      .template all_reduce<std::int32_t>(
          stream, "encore::world::largest",
          backend::Vector<std::int32_t, Space>(reinterpret_cast<std::int32_t*>(memory.data()), 1),
          backend::Reduction::maximum);
  stream.copy_to_host(&mine, memory.data(), sizeof mine, "a number of all ranks");
  backend::synchronize(stream, "a number of all ranks", device_.watch());
  return mine;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::add_over_ranks(std::span<std::int32_t> values) {
  const std::string_view world = name_of(RankGroup::world);
  if (!device_.is_in(world) || values.empty()) return;
  auto& stream = device_.stream();
  const backend::Allocation<Space> memory("numbers of all ranks", values.size_bytes());
  stream.copy_to_device(memory.data(), std::as_bytes(values).data(), values.size_bytes(),
                        "numbers of all ranks");
  device_.communicator(world).template all_reduce<std::int32_t>(
      stream, "encore::world::sum",
      backend::Vector<std::int32_t, Space>(reinterpret_cast<std::int32_t*>(memory.data()), values.size()),
      backend::Reduction::sum);
  stream.copy_to_host(std::as_writable_bytes(values).data(), memory.data(), values.size_bytes(),
                      "numbers of all ranks");
  backend::synchronize(stream, "numbers of all ranks", device_.watch());
}

template <class Space, class T, class G>
std::vector<RandomPosition> DeviceTrainer<Space, T, G>::random_positions() {
  std::vector<RandomPosition> positions;
  const auto& names = device_.random().names();
  for (const backend::RandomState& state : device_.random().snapshot(device_.stream()))
    positions.push_back({state.seed - seed_of_rank(names[positions.size()], layout_.shard()), state.offset});
  return positions;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::restore(std::int64_t steps_done,
                                         const std::vector<RandomPosition>& positions) {
  std::vector<backend::RandomState> states;
  const auto& names = device_.random().names();
  for (const RandomPosition& position : positions) {
    // Of another number of streams none is restored.
    const std::string_view name = states.size() < names.size() ? names[states.size()] : std::string_view();
    states.push_back({position.seed + seed_of_rank(name, layout_.shard()), position.offset});
  }
  device_.random().restore(device_.stream(), states);
  steps_done_ = steps_done;
}

}  // namespace encore::model
