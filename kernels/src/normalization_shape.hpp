// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.hpp"
#include "shapes.hpp"

#include <cstring>

namespace encore::kernels::impl {

/// A team of `Threads` threads that keeps whole rows in registers: `Lanes` neighbours with up to `Packets` packets
/// each share a row. Lanes are one warp, whose sums need no barrier, or the whole team.
template <int Threads, int Lanes, int Packets>
struct RowTeam {
  static_assert(Lanes == 32 || Lanes == Threads);
  static constexpr int threads = Threads;
  static constexpr int lanes = Lanes;
  static constexpr int packets = Packets;
  static constexpr int rows = Threads / Lanes;  ///< that a team works on at a time

  template <class Team, class A>
  KOKKOS_FUNCTION static A sum(const Team& team, A value) {
    if constexpr (Lanes == 32)
      return LaneGroups<Lanes, Team>(team).sum(value);
    else
      return team.sum(value);
  }
};

/// To be called between two passes over packets in registers: makes a GPU's compiler forget what it computed from them,
/// which takes twice their registers, so that it keeps the packets and computes that again.
template <class T, int Width, int Count>
KOKKOS_INLINE_FUNCTION void keep_packed([[maybe_unused]] backend::Packet<T, Width> (&packets)[Count]) {
#if defined(__CUDA_ARCH__)
  for (int k = 0; k < Count; ++k) {
    constexpr int words = sizeof(packets[k]) / sizeof(unsigned);
    unsigned word[words];
    memcpy(word, &packets[k], sizeof word);
    for (int i = 0; i < words; ++i) asm volatile("" : "+r"(word[i]));
    memcpy(&packets[k], word, sizeof word);
  }
#endif
}

/// Calls `launch(RowTeam)` with the first of the teams that holds a row of `hidden` elements, if the space is
/// a GPU and the row consists of packets; else returns false.
template <class Space, class T, class... Teams, class Launch, class... Pointer>
bool with_row_team(std::int64_t hidden, const Launch& launch, const Pointer*... data) {
  if constexpr (!backend::is_host_space<Space>) {
    constexpr int width = backend::packet_width<T>;
    if (hidden % width != 0 || !(is_aligned<width>(data) && ...)) return false;
    return ((hidden / width <= Teams::lanes * Teams::packets && (launch(Teams{}), true)) || ...);
  }
  return false;
}

/// Threads of a team that reads its row from memory in every pass.
inline constexpr int general_row_threads = 256;

}  // namespace encore::kernels::impl
