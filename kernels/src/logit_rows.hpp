// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mathematics.hpp"
#include "shapes.hpp"

namespace encore::kernels::impl {

/// Lower than any logit, but finite, so that differences are never NaN.
template <class A>
inline constexpr A lowest = A(-3.0e38);

/// Maximum and sum of exp(x - maximum) of what was added so far: one pass over a row gives both. Milakov and
/// Gimelshein, "Online normalizer calculation for softmax", 2018.
template <class A>
struct RunningSum {
  A maximum = lowest<A>;
  A sum = A(0);

  KOKKOS_FUNCTION void raise(A value) {
    if (value <= maximum) return;
    sum *= impl::exponential(maximum - value);
    maximum = value;
  }
  KOKKOS_FUNCTION void add(A value) {
    raise(value);
    sum += impl::exponential(value - maximum);
  }
};

/// What kernels do with a row of logits, or of a part of the vocabulary's.
template <bool Packets, class T>
struct LogitRow {
  using A = Accumulator<T>;
  static constexpr int width = Packets ? backend::packet_width<T> : 1;

  std::int64_t size;

  /// Maximum, and sum of exp(x - maximum), for every thread of the team.
  template <class Team>
  KOKKOS_FUNCTION RunningSum<A> sum_of(const Team& team, const T* row) const {
    RunningSum<A> running;
    if constexpr (impl::is_host_team<Team>) {
      constexpr std::int64_t block = 2048;  // Stays in the first-level cache between maximum and sum.
      for (std::int64_t begin = 0; begin < size; begin += block) {
        const std::int64_t count = size - begin < block ? size - begin : block;
        const T* values = row + begin;
        running.raise(team.template max_over<A>(count, lowest<A>,
                                                [=](std::int64_t i) { return static_cast<A>(values[i]); }));
        const A maximum = running.maximum;
        running.sum += team.template sum_over<A>(
            count, [=](std::int64_t i) { return impl::exponential(static_cast<A>(values[i]) - maximum); });
      }
      return running;
    } else {
      for_each_packet(
          team, row, [&](std::int64_t i) { running.add(static_cast<A>(row[i])); },
          [&](const T* packet, std::int64_t) {
            const auto values = backend::load_packet<width>(packet);
            A largest = static_cast<A>(values[0]);
            for (int i = 1; i < width; ++i)
              largest = static_cast<A>(values[i]) > largest ? static_cast<A>(values[i]) : largest;
            running.raise(largest);
            for (int i = 0; i < width; ++i)
              running.sum += impl::exponential(static_cast<A>(values[i]) - running.maximum);
          });
      const A maximum = team.max(running.maximum);
      return {maximum, team.sum(running.sum * impl::exponential(running.maximum - maximum))};
    }
  }

  template <class Team>
  KOKKOS_FUNCTION void clear(const Team& team, T* row) const {
    for_each_packet(
        team, row, [=](std::int64_t i) { row[i] = static_cast<T>(A(0)); },
        [](T* packet, std::int64_t) { backend::store_packet(packet, 0, backend::Packet<T, width>{}); });
  }

  /// Shares a row out over the team in aligned packets. A row of odd length may begin anywhere, so
  /// what stands before its first and behind its last whole packet goes element by element.
  template <class Team, class Value, class Element, class Body>
  KOKKOS_FUNCTION void for_each_packet(const Team& team, Value* row, const Element& element,
                                       const Body& packet) const {
    if constexpr (width == 1) {
      team.for_each(size, element);
    } else {
      const auto misplaced =
          static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % width);
      const std::int64_t whole_row_head = misplaced == 0 ? 0 : width - misplaced;
      const std::int64_t head = whole_row_head < size ? whole_row_head : size;
      const std::int64_t packets = (size - head) / width, tail = head + packets * width;
      if (team.rank() < head) element(team.rank());
      team.for_each(packets, [&](std::int64_t p) { packet(row + head + p * width, head + p * width); });
      if (tail + team.rank() < size) element(tail + team.rank());
    }
  }
};

}  // namespace encore::kernels::impl
