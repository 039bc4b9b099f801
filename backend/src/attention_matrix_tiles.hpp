// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.hpp"

#include <encore/backend/matrix_units.hpp>
#include <encore/backend/packet.hpp>

#include <cstddef>

/// Before loops over arrays that must stay in registers.
#if defined(__CUDA_ARCH__)
#define ENCORE_UNROLL _Pragma("unroll")
#else
#define ENCORE_UNROLL
#endif

namespace encore::backend::impl {

/// Rows of a head in a team's scratch, in bfloat16 or as partial sums in float: padded so that 8 rows of 16 bytes from
/// one column on lie in different banks.
template <int HeadDim>
inline constexpr int matrix_row = HeadDim + 8;

/// The tokens of a head, as one thread of a team copies them: 16 bytes of every so many rows.
template <class Units, int HeadDim, int Threads>
struct TokenCopies {
  static constexpr int packets = HeadDim / 8, step = Threads / packets;
  static_assert(Threads % packets == 0);

  const std::byte* source;
  std::int64_t head_stride;  ///< in bytes, as is the next
  int token_stride;
  int row, column;  ///< its first

  KOKKOS_INLINE_FUNCTION static TokenCopies of(const HeadsOperand<const bfloat16>& operand, int batch,
                                               int head, int thread) {
    const int column = thread % packets * 8;
    return {reinterpret_cast<const std::byte*>(head_of(operand, batch, head, 0) + column),
            operand.head_stride * 2, static_cast<int>(operand.token_stride * 2), thread / packets, column};
  }
  KOKKOS_INLINE_FUNCTION void next_head() { source += head_stride; }

  /// Starts the copy of `Rows` tokens to scratch; those from `tokens` on become zeros.
  template <int Rows>
  KOKKOS_INLINE_FUNCTION void start(bfloat16* to, int token, int tokens) const {
    bfloat16* first = to + row * matrix_row<HeadDim> + column;
    ENCORE_UNROLL
    for (int i = 0; i < (Rows + step - 1) / step; ++i) {
      if (Rows % step != 0 && row + i * step >= Rows) break;
      const int at = token + row + i * step;
      const bool exists = at < tokens;
      const std::byte* from = source + static_cast<std::int64_t>(exists ? at : 0) * token_stride;
      Units::copy_async(first + i * step * matrix_row<HeadDim>, reinterpret_cast<const bfloat16*>(from),
                        exists);
    }
  }
};

/// Two neighbouring tiles of sums (16 x 8 each) as the first operand (16 x 16) of the next product.
template <class Units>
KOKKOS_INLINE_FUNCTION void as_first(std::uint32_t (&first)[4], const float (&left)[4],
                                     const float (&right)[4]) {
  first[0] = Units::pack(left[0], left[1]);
  first[1] = Units::pack(left[2], left[3]);
  first[2] = Units::pack(right[0], right[1]);
  first[3] = Units::pack(right[2], right[3]);
}

/// Turns packet `packet` of a head's first half and that of its second half, by `direction` 1, or back by -1.
KOKKOS_INLINE_FUNCTION void turn_packets(const AttentionRotation<float>& rotation, float direction,
                                         int head_dim, int token, int packet, Packet<bfloat16, 8>& left,
                                         Packet<bfloat16, 8>& right) {
  const std::int64_t begin = static_cast<std::int64_t>(token) * (head_dim / 2);
  const float *cosine = rotation.cosine + begin, *sine = rotation.sine + begin;
  if (rotation.interleaved) {
    const auto c = load_packet<4>(cosine, packet), s = load_packet<4>(sine, packet);
    const auto d = load_packet<4>(cosine + head_dim / 4, packet),
               t = load_packet<4>(sine + head_dim / 4, packet);
    ENCORE_UNROLL
    for (int i = 0; i < 4; ++i) {
      turn(left[2 * i], left[2 * i + 1], c[i], direction * s[i]);
      turn(right[2 * i], right[2 * i + 1], d[i], direction * t[i]);
    }
  } else {
    ENCORE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto c = load_packet<4>(cosine, packet * 2 + half), s = load_packet<4>(sine, packet * 2 + half);
      ENCORE_UNROLL
      for (int i = 0; i < 4; ++i) turn(left[half * 4 + i], right[half * 4 + i], c[i], direction * s[i]);
    }
  }
}

/// Turns tokens of a head that are in scratch.
template <int Rows, int HeadDim, class Team>
KOKKOS_INLINE_FUNCTION void turn_tokens(const Team& team, int threads,
                                        const AttentionRotation<float>& rotation, bfloat16* tile, int token,
                                        int tokens) {
  constexpr int packets = HeadDim / 16;
  for (int item = team.rank(); item < Rows * packets; item += threads) {
    const int at = item / packets, packet = item % packets;
    if (token + at >= tokens) break;
    bfloat16* first = tile + at * matrix_row<HeadDim>;
    auto left = load_packet<8>(first, packet), right = load_packet<8>(first + HeadDim / 2, packet);
    turn_packets(rotation, 1.0F, HeadDim, token + at, packet, left, right);
    store_packet(first, packet, left);
    store_packet(first + HeadDim / 2, packet, right);
  }
}

/// Puts a warp's sums (16 x HeadDim) into scratch, rows of matrix_row floats.
template <int HeadDim>
KOKKOS_INLINE_FUNCTION void put_sums(float* to, const float (&sums)[HeadDim / 8][4], int lane) {
  float* upper = to + lane / 4 * matrix_row<HeadDim> + lane % 4 * 2;
  ENCORE_UNROLL
  for (int block = 0; block < HeadDim / 8; ++block) {
    store_packet(upper + block * 8, 0, Packet<float, 2>{{sums[block][0], sums[block][1]}});
    store_packet(upper + 8 * matrix_row<HeadDim> + block * 8, 0,
                 Packet<float, 2>{{sums[block][2], sums[block][3]}});
  }
}

}  // namespace encore::backend::impl
