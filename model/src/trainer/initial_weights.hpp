// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/memory.hpp>
#include <encore/backend/space.hpp>
#include <encore/backend/stream.hpp>
#include <encore/kernels/box_copy.hpp>
#include <encore/kernels/initialization.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <algorithm>
#include <cstdint>

namespace encore::model {

/// What a parameter starts from; `draw` is a number of its own among all that are drawn.
template <class Space, class Element>
void fill_initial(backend::Stream<Space>& stream, const Parameter& parameter,
                  backend::Vector<Element, Space> values, std::uint64_t seed, std::uint32_t draw) {
  switch (parameter.initialization) {
    case Initialization::normal:
      return kernels::fill_normal<Space, Element>(stream, values, 0.0, parameter.deviation, seed, draw);
    case Initialization::ones: return kernels::fill_constant<Space, Element>(stream, values, 1.0);
    case Initialization::zeros: return kernels::fill_constant<Space, Element>(stream, values, 0.0);
    case Initialization::uniform:
      return kernels::fill_uniform<Space, Element>(stream, values, -parameter.deviation, parameter.deviation,
                                                   seed, draw);
    case Initialization::log_of_rank: return kernels::fill_log_of_rank<Space, Element>(stream, values);
    case Initialization::inverse_softplus_of_step:
      // Bounds of Dao and Gu's code, and of Hugging Face's Mamba2Config.
      return kernels::fill_inverse_softplus_of_step<Space, Element>(stream, values, 0.001, 0.1, 1e-4, seed,
                                                                    draw);
  }
}

/// A box as a kernel copies it, between the array of parameters and a tensor.
inline kernels::BoxShape shape_of(const ParameterBox& box) {
  kernels::BoxShape shape;
  for (std::size_t i = box.extents.size(), to = 3; i > 0; --i) {
    --to;
    shape.extents[to] = box.extents[i - 1];
    shape.from[to] = box.strides[i - 1];
    shape.to[to] = box.tensor_strides[i - 1];
  }
  return shape;
}

/// All weights that a rank has, [layout.elements()], from a seed: the same numbers whatever the number of ranks. Waits
/// for the device, and allocates where a rank has a part of a parameter.
template <class Space, class Element>
void fill_initial_weights(backend::Stream<Space>& stream, const ParameterLayout& layout, Element* data,
                          std::uint64_t seed) {
  std::int64_t largest = 0;
  for (const Parameter& parameter : layout.parameters())
    if (!parameter.is_whole()) largest = std::max(largest, parameter.whole_elements());
  const backend::Allocation<Space> whole("initial weights",
                                         static_cast<std::size_t>(largest) * sizeof(Element));
  auto* const scratch = reinterpret_cast<Element*>(whole.data());
  for (const Parameter& parameter : layout.parameters()) {
    Element* const to = parameter.is_whole() ? data + parameter.offset : scratch;
    const backend::Vector<Element, Space> values(to, static_cast<std::size_t>(parameter.whole_elements()));
    fill_initial<Space, Element>(stream, parameter, values, seed, parameter.draw);
    if (parameter.is_whole()) continue;
    for (const ParameterBox& box : layout.boxes_of(parameter))
      kernels::copy_box<Space>(stream, reinterpret_cast<const std::byte*>(scratch + box.tensor_offset),
                               reinterpret_cast<std::byte*>(data + box.offset), shape_of(box).reversed(),
                               backend::data_type_of<Element>);
  }
  stream.synchronize("initial weights");
}

}  // namespace encore::model
