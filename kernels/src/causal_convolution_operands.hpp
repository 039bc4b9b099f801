// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/causal_convolution.hpp>

#include "column_access.hpp"
#include "mathematics.hpp"

namespace encore::kernels::impl {

inline constexpr int least_taps = 2, most_taps = 8;

/// Channels that a host thread computes side by side; the last of them may be missing.
inline constexpr int host_channels = 16;

/// `Width` neighbouring channels: on a GPU one packet, on hosts a loop over those that exist.
template <int Width, bool Whole, class T>
struct ChannelStrip {
  using A = Accumulator<T>;

  int count = Width;

  KOKKOS_FUNCTION void load(const T* source, A (&values)[Width]) const {
    if constexpr (Whole) {
      const auto packet = backend::load_packet<Width>(source);
      for (int i = 0; i < Width; ++i) values[i] = static_cast<A>(packet[i]);
    } else {
      for (int i = 0; i < Width; ++i) values[i] = i < count ? static_cast<A>(source[i]) : A(0);
    }
  }
  KOKKOS_FUNCTION void store(T* target, const A (&values)[Width]) const {
    if constexpr (Whole) {
      backend::Packet<T, Width> packet;
      for (int i = 0; i < Width; ++i) packet[i] = static_cast<T>(values[i]);
      backend::store_packet(target, 0, packet);
    } else {
      for (int i = 0; i < count; ++i) target[i] = static_cast<T>(values[i]);
    }
  }
};

/// Widths of 2 to 4 are compiled as they are. Wider ones are the last of 8 taps.
template <int Taps>
struct TapCount {
  std::int64_t count;

  KOKKOS_FUNCTION std::int64_t width() const { return Taps <= 4 ? Taps : count; }
  /// Whether tap k exists.
  KOKKOS_FUNCTION bool has(int k) const { return Taps <= 4 || k >= Taps - count; }
};

template <int Taps, int Width, bool Whole, class T>
struct ConvolutionWeights {
  using A = Accumulator<T>;

  TapCount<Taps> taps;
  A weight[Taps][Width];
  A bias[Width];

  KOKKOS_FUNCTION ConvolutionWeights(TapCount<Taps> count, const ChannelStrip<Width, Whole, T>& strip,
                                     const T* weights, const T* biases, std::int64_t channel)
      : taps(count) {
    const T* source = weights + channel * taps.width();
    if constexpr (Whole && Taps <= 4) {
      T all[Taps * Width];
      for (int part = 0; part < Taps; ++part) {
        const auto packet = backend::load_packet<Width>(source, part);
        for (int i = 0; i < Width; ++i) all[part * Width + i] = packet[i];
      }
      for (int k = 0; k < Taps; ++k)
        for (int i = 0; i < Width; ++i) weight[k][i] = static_cast<A>(all[i * Taps + k]);
    } else {
      const std::int64_t first = Taps - taps.width();
      for (int k = 0; k < Taps; ++k)
        for (int i = 0; i < Width; ++i)
          weight[k][i] =
              taps.has(k) && i < strip.count ? static_cast<A>(source[i * taps.width() + k - first]) : A(0);
    }
    for (int i = 0; i < Width; ++i) bias[i] = 0;
    if (biases != nullptr) strip.load(biases + channel, bias);
  }

  /// bias + sum over k of weight[k] * window[k].
  KOKKOS_FUNCTION void sum(const A (&window)[Taps][Width], A (&result)[Width]) const {
    for (int i = 0; i < Width; ++i) result[i] = bias[i];
    for (int k = 0; k < Taps; ++k)
      if (taps.has(k))
        for (int i = 0; i < Width; ++i) result[i] += weight[k][i] * window[k][i];
  }
};

/// Forgets the first row and makes room for a new last one.
template <int Taps, int Width, class A>
KOKKOS_INLINE_FUNCTION void shift(A (&window)[Taps][Width]) {
  for (int k = 0; k + 1 < Taps; ++k)
    for (int i = 0; i < Width; ++i) window[k][i] = window[k + 1][i];
}

/// Calls `body(TapCount)`.
template <class Body>
void with_taps(std::int64_t taps, const Body& body) {
  switch (taps) {
    case 2: return body(TapCount<2>{taps});
    case 3: return body(TapCount<3>{taps});
    case 4: return body(TapCount<4>{taps});
    default: return body(TapCount<most_taps>{taps});
  }
}

/// Calls `body(width, whole)` with packets of `Width` where every row's address allows them.
template <class Space, int Width, class Body, class... T>
void with_strips(std::int64_t channels, const Body& body, const Columns<T>&... columns) {
  if constexpr (backend::is_host_space<Space>) {
    body(WidthConstant<host_channels>{}, std::false_type{});
  } else {
    if (channels % Width == 0 && (is_aligned<Width>(columns) && ...))
      return body(WidthConstant<Width>{}, std::true_type{});
    body(WidthConstant<1>{}, std::true_type{});
  }
}

}  // namespace encore::kernels::impl
