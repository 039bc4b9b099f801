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
#include <exception>
#include <vector>

namespace encore::model {

/// What a parameter starts from, from its element `first` on; `draw` is a number of its own among all that are drawn.
template <class Space, class Element>
void fill_initial(backend::Stream<Space>& stream, const Parameter& parameter,
                  backend::Vector<Element, Space> values, std::uint64_t seed, std::uint32_t draw,
                  std::int64_t first) {
  switch (parameter.initialization) {
    case Initialization::normal:
      return kernels::fill_normal<Space, Element>(stream, values, 0.0, parameter.deviation, seed, draw,
                                                  first);
    case Initialization::ones: return kernels::fill_constant<Space, Element>(stream, values, 1.0);
    case Initialization::zeros: return kernels::fill_constant<Space, Element>(stream, values, 0.0);
    case Initialization::uniform:
      return kernels::fill_uniform<Space, Element>(stream, values, -parameter.deviation, parameter.deviation,
                                                   seed, draw, first);
    case Initialization::log_of_rank: return kernels::fill_log_of_rank<Space, Element>(stream, values, first);
    case Initialization::inverse_softplus_of_step:
      // Bounds of Dao and Gu's code, and of Hugging Face's Mamba2Config.
      return kernels::fill_inverse_softplus_of_step<Space, Element>(stream, values, 0.001, 0.1, 1e-4, seed,
                                                                    draw, first);
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

/// Gives a rank's parameters the values that they have in a model that one rank has whole. What other ranks have is drawn
/// too and thrown away, piece by piece, so that little memory is taken beside the parameters. Waits for the device as
/// it is destroyed.
template <class Space, class Element>
class InitialWeights {
 public:
  InitialWeights(backend::Stream<Space>& stream, const ParameterLayout& layout, std::uint64_t seed)
      : stream_(stream), layout_(layout), seed_(seed) {
    std::int64_t largest = 0;
    for (const Parameter& parameter : layout.parameters())
      if (!parameter.is_whole()) largest = std::max(largest, rows_of_a_piece(parameter) * row(parameter));
    piece_ = backend::Allocation<Space>("initial weights",
                                        static_cast<std::size_t>(largest + quad) * sizeof(Element));
  }
  ~InitialWeights() {
    try {
      stream_.synchronize("initial weights");
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next call on the stream tells it.
    }
  }
  InitialWeights(const InitialWeights&) = delete;
  InitialWeights& operator=(const InitialWeights&) = delete;

  /// What the rank has of the parameter, [parameter.elements()].
  void fill(const Parameter& parameter, Element* values) {
    const auto drawn = [&](Element* to, std::int64_t count, std::int64_t first) {
      fill_initial<Space, Element>(stream_, parameter,
                                   backend::Vector<Element, Space>(to, static_cast<std::size_t>(count)),
                                   seed_, parameter.draw, first);
    };
    if (parameter.is_whole()) return drawn(values, parameter.whole_elements(), 0);
    const std::vector<ParameterBox> boxes = layout_.boxes_of(parameter);
    auto* const piece = reinterpret_cast<Element*>(piece_.data());
    const std::int64_t rows = parameter.whole_shape.at(0), step = rows_of_a_piece(parameter);
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const Stretch of_piece{begin, std::min(begin + step, rows)};
      const std::int64_t first = begin * row(parameter) / quad * quad;
      bool is_drawn = false;
      for (const ParameterBox& box : boxes) {
        const Stretch common = rows_in(box, of_piece, row(parameter));
        if (common.begin >= common.end) continue;
        if (!is_drawn) drawn(piece, of_piece.end * row(parameter) - first, first);
        is_drawn = true;
        const std::int64_t before = common.begin - box.tensor_offset / row(parameter);
        kernels::BoxShape shape = shape_of(box).reversed();
        shape.extents[3 - box.extents.size()] = common.size();
        kernels::copy_box<Space>(
            stream_,
            reinterpret_cast<const std::byte*>(piece + box.tensor_offset + before * box.tensor_strides[0] -
                                               first),
            reinterpret_cast<std::byte*>(values + box.offset + before * box.strides[0] - parameter.offset),
            shape, backend::data_type_of<Element>);
      }
    }
  }

 private:
  static constexpr std::int64_t quad = 4;  ///< that are drawn together
  static constexpr std::int64_t piece_elements = 1 << 22;

  static std::int64_t row(const Parameter& parameter) {
    return parameter.whole_elements() / parameter.whole_shape.at(0);
  }
  static std::int64_t rows_of_a_piece(const Parameter& parameter) {
    return std::clamp<std::int64_t>(piece_elements / row(parameter), 1, parameter.whole_shape.at(0));
  }
  static Stretch rows_in(const ParameterBox& box, const Stretch& rows, std::int64_t row) {
    const std::int64_t first = box.tensor_offset / row;
    return {std::max(rows.begin, first), std::min(rows.end, first + box.extents.at(0))};
  }

  backend::Stream<Space>& stream_;
  const ParameterLayout& layout_;
  std::uint64_t seed_;
  backend::Allocation<Space> piece_;
};

/// All weights that a rank has, [layout.elements()], from a seed: the same numbers whatever the number of ranks. Waits
/// for the device.
template <class Space, class Element>
void fill_initial_weights(backend::Stream<Space>& stream, const ParameterLayout& layout, Element* data,
                          std::uint64_t seed) {
  InitialWeights<Space, Element> initial(stream, layout, seed);
  for (const Parameter& parameter : layout.parameters()) initial.fill(parameter, data + parameter.offset);
  stream.synchronize("initial weights");
}

}  // namespace encore::model
