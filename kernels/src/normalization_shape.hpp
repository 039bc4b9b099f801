// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shapes.hpp"

namespace encore::kernels::impl {

/// A team that keeps a whole row in registers: `Threads` threads with up to `Packets` packets each.
template <int Threads, int Packets>
struct RowTeam {
  static constexpr int threads = Threads;
  static constexpr int packets = Packets;
};

/// Calls `launch(RowTeam)` with the first of the teams that holds a row of `hidden` elements, if the space is
/// a GPU and the row consists of packets; else returns false.
template <class Space, class T, class... Teams, class Launch, class... Pointer>
bool with_row_team(std::int64_t hidden, const Launch& launch, const Pointer*... data) {
  if constexpr (!backend::is_host_space<Space>) {
    constexpr int width = backend::packet_width<T>;
    if (hidden % width != 0 || !(is_aligned<width>(data) && ...)) return false;
    return ((hidden / width <= Teams::threads * Teams::packets && (launch(Teams{}), true)) || ...);
  }
  return false;
}

/// Threads of a team that reads its row from memory in every pass.
inline constexpr int general_row_threads = 256;

}  // namespace encore::kernels::impl
