// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/philox.hpp>

#include "shapes.hpp"

namespace encore::kernels::impl {

/// Elements of a work item that draws random numbers. A GPU thread takes a packet, but at least the four
/// elements of one Philox call; a host thread a block, so that the Philox rounds of its quads run side by
/// side in vector registers.
template <class Space, int Width>
inline constexpr int random_item_elements = backend::is_host_space<Space> ? 256
                                            : Width < 4                   ? 4
                                                                          : Width;

/// The random words of the elements [begin, begin + Elements); begin is a multiple of 4.
template <int Elements>
KOKKOS_INLINE_FUNCTION void draw_words(const backend::RandomState* state, std::uint32_t segment,
                                       std::int64_t begin, std::uint32_t (&words)[Elements]) {
  const backend::RandomState from = *state;
#pragma GCC ivdep
  for (int quad = 0; quad < Elements / 4; ++quad) {
    const auto drawn = backend::random_words(from, segment, static_cast<std::uint64_t>(begin / 4 + quad));
    for (int i = 0; i < 4; ++i) words[4 * quad + i] = drawn.word[i];
  }
}

}  // namespace encore::kernels::impl
