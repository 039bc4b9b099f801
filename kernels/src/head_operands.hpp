// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.hpp"

#include <encore/kernels/head_normalization.hpp>

namespace encore::kernels::impl {

/// What the kernels of head normalization share. `cosine` null: no rotation.
template <class T>
struct HeadOperands {
  using A = Accumulator<T>;
  ProjectedHeads heads;
  const T* projected;
  const T* query_weight;
  const T* key_weight;
  const A* cosine;
  const A* sine;
  A epsilon;
  bool interleaved;

  KOKKOS_FUNCTION std::int64_t half() const { return heads.head_dim / 2; }
  KOKKOS_FUNCTION std::int64_t all_heads() const { return heads.query_heads + heads.key_heads; }
  KOKKOS_FUNCTION const T* weight(std::int64_t head) const {
    return head < heads.query_heads ? query_weight : key_weight;
  }
  KOKKOS_FUNCTION std::int64_t table_row(std::int64_t token) const {
    return (token - quotient(token, heads.sequence) * heads.sequence) * half();
  }
  KOKKOS_FUNCTION A inverse_rms(A squares) const {
    return 1 / Kokkos::sqrt(squares / static_cast<A>(heads.head_dim) + epsilon);
  }
  /// Entries of a head that turn together.
  KOKKOS_FUNCTION std::int64_t first(std::int64_t pair) const { return interleaved ? 2 * pair : pair; }
  KOKKOS_FUNCTION std::int64_t second(std::int64_t pair) const {
    return interleaved ? 2 * pair + 1 : pair + half();
  }
};

template <class A>
KOKKOS_INLINE_FUNCTION void turn(A& x, A& y, A cosine, A sine) {
  const A turned = x * cosine - y * sine;
  y = x * sine + y * cosine;
  x = turned;
}

/// A lane's part of a head: `Width` entries of its first half and as many of its second.
template <int Width, class A>
struct HeadPart {
  A first[Width], second[Width];

  /// Entries from lane * Width on in each half of `head`; zeros if the head has none for this lane.
  template <class T>
  KOKKOS_FUNCTION void load(const T* head, std::int64_t half, int lane, bool active) {
    backend::Packet<T, Width> a = {}, b = {};
    if (active) {
      a = backend::load_packet<Width>(head, lane);
      b = backend::load_packet<Width>(head + half, lane);
    }
    for (int i = 0; i < Width; ++i) {
      first[i] = static_cast<A>(a[i]);
      second[i] = static_cast<A>(b[i]);
    }
  }

  template <class T>
  KOKKOS_FUNCTION void store(T* head, std::int64_t half, int lane) const {
    backend::Packet<T, Width> a, b;
    for (int i = 0; i < Width; ++i) {
      a[i] = static_cast<T>(first[i]);
      b[i] = static_cast<T>(second[i]);
    }
    backend::store_packet(head, lane, a);
    backend::store_packet(head + half, lane, b);
  }

  /// Rotates; direction -1 rotates back.
  template <class T>
  KOKKOS_FUNCTION void rotate(const HeadOperands<T>& of, std::int64_t token, int lane, A direction) {
    if (of.cosine == nullptr) return;
    const std::int64_t row = of.table_row(token);
    if (of.interleaved) {
      constexpr int pairs = Width / 2;
      const std::int64_t later = row + of.half() / 2;
      for (int i = 0; i < pairs; ++i) {
        const std::int64_t at = static_cast<std::int64_t>(lane) * pairs + i;
        turn(first[2 * i], first[2 * i + 1], of.cosine[row + at], direction * of.sine[row + at]);
        turn(second[2 * i], second[2 * i + 1], of.cosine[later + at], direction * of.sine[later + at]);
      }
    } else {
      const auto cosines = backend::load_packet<Width>(of.cosine + row, lane);
      const auto sines = backend::load_packet<Width>(of.sine + row, lane);
      for (int i = 0; i < Width; ++i) turn(first[i], second[i], cosines[i], direction * sines[i]);
    }
  }
};

inline constexpr int head_threads = 256;

/// Calls `launch(lanes, width)` with the lanes that hold a head in two packets each, if the space is a GPU and heads
/// consist of such packets; else returns false.
template <class Space, class T, class Launch, class... Pointer>
bool with_head_lanes(const HeadOperands<T>& of, const Launch& launch, const Pointer*... data) {
  if constexpr (!backend::is_host_space<Space>) {
    constexpr int width = backend::packet_width<T>;
    const std::int64_t half = of.half();
    const bool packets = half % width == 0 && of.heads.row_stride % width == 0 && half / width <= 16 &&
                         is_aligned<width>(of.projected) && is_aligned<width>(of.query_weight) &&
                         is_aligned<width>(of.key_weight) && is_aligned<width>(of.cosine) &&
                         is_aligned<width>(of.sine) && (is_aligned<width>(data) && ...);
    if (!packets) return false;
    if (half / width <= 4)
      launch(WidthConstant<4>{}, WidthConstant<width>{});
    else if (half / width <= 8)
      launch(WidthConstant<8>{}, WidthConstant<width>{});
    else
      launch(WidthConstant<16>{}, WidthConstant<width>{});
    return true;
  }
  return false;
}

/// Checks what forward and backward have in common.
template <class T, class Space>
HeadOperands<T> head_operands(const ProjectedHeads& heads, const T* projected,
                              const Vector<const T, Space>& query_weight,
                              const Vector<const T, Space>& key_weight, RopeStyle style,
                              const Matrix<const Accumulator<T>, Space>& cosine,
                              const Matrix<const Accumulator<T>, Space>& sine, double epsilon) {
  const std::int64_t half = heads.head_dim / 2;
  require_shape(heads.head_dim == 2 * half && half > 0 && heads.query_heads > 0 && heads.key_heads > 0 &&
                    heads.row_stride >= (heads.query_heads + heads.key_heads) * heads.head_dim,
                "head_norm: head_dim must be even and a row must hold all heads");
  require_shape(is_vector(query_weight, heads.head_dim) && is_vector(key_weight, heads.head_dim),
                "head_norm: the weights must be [head_dim]");
  require_shape(is_empty(cosine) == is_empty(sine) && heads.sequence > 0 &&
                    (is_empty(cosine) ||
                     (has_rows(cosine, heads.sequence, half) && has_rows(sine, heads.sequence, half))),
                "head_norm: the tables must be [>= sequence, head_dim / 2] or both be empty");
  return {heads,
          projected,
          query_weight.data(),
          key_weight.data(),
          cosine.data(),
          sine.data(),
          static_cast<Accumulator<T>>(epsilon),
          style == RopeStyle::interleaved};
}

}  // namespace encore::kernels::impl
