// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shapes.hpp"

namespace encore::kernels::impl {

/// result[i] = sums[i], or += if `accumulate`, for `Width` neighbours in accesses of at most 16 bytes;
/// `result` is aligned to the smaller of those and the whole.
template <int Width, class G, class A>
KOKKOS_INLINE_FUNCTION void store_sums(G* result, const A* sums, bool accumulate) {
  constexpr int part = smaller(Width, backend::packet_width<G>);
  for (int p = 0; p < Width / part; ++p) {
    backend::Packet<G, part> before = {}, value;
    if (accumulate) before = backend::load_packet<part>(result, p);
    for (int i = 0; i < part; ++i) value[i] = static_cast<G>(sums[p * part + i] + static_cast<A>(before[i]));
    backend::store_packet(result, p, value);
  }
}

}  // namespace encore::kernels::impl
