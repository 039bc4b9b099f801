// SPDX-License-Identifier: Apache-2.0
#include "whole_tensors.hpp"

#include <algorithm>
#include <cstring>

namespace encore::model {

namespace {

/// Calls visit(first element in the tensor, first element in the box, elements) for every run of neighbours.
template <class Visit>
void for_each_run(const ParameterBox& box, const Visit& visit) {
  if (box.elements() == 0) return;
  // Dimensions that lie in the tensor as in the box are one run.
  std::size_t outer = box.extents.size();
  std::int64_t run = 1;
  while (outer > 0 && box.tensor_strides[outer - 1] == run) run *= box.extents[--outer];
  std::vector<std::int64_t> index(outer, 0);
  for (std::int64_t item = 0;; item += run) {
    std::int64_t at = box.tensor_offset;
    for (std::size_t i = 0; i < outer; ++i) at += index[i] * box.tensor_strides[i];
    visit(at, item, run);
    std::size_t dimension = outer;
    while (dimension > 0 && ++index[dimension - 1] == box.extents[dimension - 1]) index[--dimension] = 0;
    if (dimension == 0) return;
  }
}

/// The part of a box in rows [begin, end) of a dimension of its tensor, with offsets from the first of these rows.
ParameterBox rows_of(const ParameterBox& box, std::size_t dimension, std::int64_t begin, std::int64_t end) {
  const std::int64_t stride = box.tensor_strides[dimension], first = box.tensor_offset / stride;
  const std::int64_t from = std::max(first, begin), to = std::min(first + box.extents[dimension], end);
  ParameterBox rows = box;
  rows.extents[dimension] = std::max<std::int64_t>(0, to - from);
  rows.tensor_offset += (from - first - begin) * stride;
  rows.offset += (from - first) * box.strides[dimension];
  return rows;
}

}  // namespace

BoxesOfTensors boxes_of_tensors(const std::vector<ParameterBox>& boxes) {
  BoxesOfTensors by_name;
  for (const ParameterBox& box : boxes) by_name[box.name].push_back(box);
  return by_name;
}

void for_each_piece(Trainer& trainer, ParameterArray array, const ParameterBox& whole,
                    const std::vector<ParameterBox>& here,
                    const std::function<void(std::span<const std::byte>)>& take) {
  constexpr std::int64_t elements_of_piece = 1 << 26;
  const std::size_t size = backend::size_of(*trainer.type_of(array));
  std::size_t dimension = 0;
  while (dimension + 1 < whole.extents.size() && whole.extents[dimension] == 1) ++dimension;
  const std::int64_t row = whole.tensor_strides[dimension], rows = whole.extents[dimension];
  const std::int64_t rows_of_piece = std::max<std::int64_t>(1, elements_of_piece / row);
  for (std::int64_t begin = 0; begin < rows; begin += rows_of_piece) {
    const std::int64_t end = std::min(rows, begin + rows_of_piece);
    const std::size_t bytes = static_cast<std::size_t>((end - begin) * row) * size;
    // Whole numbers, of which one rank has each and the others have zeros: their sums keep every bit.
    std::vector<std::int32_t> piece((bytes + sizeof(std::int32_t) - 1) / sizeof(std::int32_t));
    auto* const to = reinterpret_cast<std::byte*>(piece.data());
    for (const ParameterBox& box : here) {
      const ParameterBox part = rows_of(box, dimension, begin, end);
      if (part.elements() == 0) continue;
      const std::vector<std::byte> own = trainer.read(array, part);
      if (!box.is_first) continue;
      for_each_run(part, [&](std::int64_t in_tensor, std::int64_t in_box, std::int64_t count) {
        std::memcpy(to + static_cast<std::size_t>(in_tensor) * size,
                    own.data() + static_cast<std::size_t>(in_box) * size,
                    static_cast<std::size_t>(count) * size);
      });
    }
    trainer.add_over_ranks(piece);
    take({to, bytes});
  }
}

std::vector<std::byte> bytes_of(const StoredTensor& tensor, const ParameterBox& box) {
  const std::size_t size = size_of(tensor.type);
  std::vector<std::byte> bytes(static_cast<std::size_t>(box.elements()) * size);
  for_each_run(box, [&](std::int64_t in_tensor, std::int64_t in_box, std::int64_t count) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(in_box) * size,
                tensor.bytes.data() + static_cast<std::size_t>(in_tensor) * size,
                static_cast<std::size_t>(count) * size);
  });
  return bytes;
}

}  // namespace encore::model
