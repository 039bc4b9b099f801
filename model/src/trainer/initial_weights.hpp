// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>
#include <encore/backend/stream.hpp>
#include <encore/kernels/initialization.hpp>
#include <encore/model/files/parameter_layout.hpp>

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

/// All weights of a model, [layout.elements()], from a seed.
template <class Space, class Element>
void fill_initial_weights(backend::Stream<Space>& stream, const ParameterLayout& layout, Element* data,
                          std::uint64_t seed) {
  std::uint32_t draw = 0;
  for (const Parameter& parameter : layout.parameters()) {
    const backend::Vector<Element, Space> values(data + parameter.offset,
                                                 static_cast<std::size_t>(parameter.elements()));
    fill_initial<Space, Element>(stream, parameter, values, seed, draw++);
  }
}

}  // namespace encore::model
