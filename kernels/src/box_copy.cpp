// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/kernels/box_copy.hpp>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

template <class Word>
struct CopyBox {
  const Word* from;
  Word* to;
  BoxShape shape;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    std::int64_t source = 0, target = 0, rest = item;
    for (int dimension = 2; dimension >= 0; --dimension) {
      const std::int64_t index = rest % shape.extents[dimension];
      rest /= shape.extents[dimension];
      source += index * shape.from[dimension];
      target += index * shape.to[dimension];
    }
    to[target] = from[source];
  }
};

/// Elements from the first to the one behind the last.
std::int64_t span_of(const BoxShape& shape, const Kokkos::Array<std::int64_t, 3>& strides) {
  std::int64_t last = 0;
  for (int i = 0; i < 3; ++i) last += (shape.extents[i] - 1) * strides[i];
  return last + 1;
}

template <class Word, class Space>
void copy_words(Stream<Space>& stream, const std::byte* from, std::byte* to, const BoxShape& shape) {
  const auto* source = reinterpret_cast<const Word*>(from);
  auto* target = reinterpret_cast<Word*>(to);
  launch(stream, "copy_box",
         {backend::read(source, static_cast<std::size_t>(span_of(shape, shape.from))),
          backend::write(target, static_cast<std::size_t>(span_of(shape, shape.to)))},
         backend::Range{shape.elements()}, CopyBox<Word>{source, target, shape});
}

}  // namespace

template <class Space>
void copy_box(Stream<Space>& stream, const std::byte* from, std::byte* to, const BoxShape& shape,
              backend::DataType type) {
  if (shape.elements() == 0) return;
  switch (backend::size_of(type)) {
    case 1: return copy_words<std::uint8_t>(stream, from, to, shape);
    case 2: return copy_words<std::uint16_t>(stream, from, to, shape);
    case 4: return copy_words<std::uint32_t>(stream, from, to, shape);
    case 8: return copy_words<std::uint64_t>(stream, from, to, shape);
    default: throw InternalError("no element has that size");
  }
}

#define ENCORE_INSTANTIATE(SPACE)                                                              \
  template void copy_box<SPACE>(Stream<SPACE>&, const std::byte*, std::byte*, const BoxShape&, \
                                backend::DataType);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
