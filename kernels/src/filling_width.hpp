// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shapes.hpp"

namespace encore::kernels::impl {

/// Threads that keep a GPU busy: a quarter of what the 132 multiprocessors of an H200 can hold.
inline constexpr std::int64_t filling_threads = 132 * 512;

/// As with_packet_width for [rows, columns]; but where packets are too few to fill a GPU, a thread takes a quarter of
/// one: it is done sooner.
template <class Space, int Width, class Launch, class... T>
void with_filling_width(std::int64_t rows, std::int64_t columns, const Launch& launch, const T*... data) {
  constexpr int narrow = Width < 4 ? 1 : Width / 4;
  if (rows * columns < filling_threads * Width)
    with_width<Space, narrow>(columns, launch, data...);
  else
    with_width<Space, Width>(columns, launch, data...);
}

}  // namespace encore::kernels::impl
