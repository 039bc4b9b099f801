// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/matrix_units.hpp>

#include "state_space_operands.hpp"

#include <utility>

namespace encore::kernels::impl {

/// Tiles of tokens on matrix units: 64 tokens, heads of 64 columns, states of 128. A team is 8 warps.
struct MatrixTiles {
  static constexpr int tokens = 64;
  static constexpr int head_dim = 64;
  static constexpr int state = 128;
  static constexpr int threads = 256;
  static constexpr int most_tiles = 4;  ///< of a chunk
  /// Elements between rows in scratch: 8 rows of 16 bytes from one column on then lie in different banks.
  static constexpr int narrow_stride = head_dim + 8;
  static constexpr int wide_stride = state + 8;
  static constexpr int narrow_tile = tokens * narrow_stride;
  static constexpr int wide_tile = tokens * wide_stride;
};

/// Whether the tiles are those of a scan in bfloat16. Backward must find what forward left, so nothing else decides.
inline bool fits_matrix_tiles(const StateSpaceShape& shape) {
  return shape.head_dim == MatrixTiles::head_dim && shape.state == MatrixTiles::state &&
         shape.chunk % MatrixTiles::tokens == 0 &&
         shape.chunk <= MatrixTiles::most_tiles * MatrixTiles::tokens;
}

template <class Space, class T>
inline constexpr bool has_matrix_units = !backend::is_host_space<Space> && std::is_same_v<T, bfloat16>;

/// Throws ConfigurationError unless all columns may be copied by 16 bytes.
template <class... Column>
void require_aligned(const Column&... columns) {
  require_shape(
      (is_aligned<8>(columns) && ...),
      "a scan in bfloat16 with heads of 64 and states of 128 needs operands whose rows start at multiples "
      "of 16 bytes");
}

using backend::first_rows;
using backend::first_rows_transposed;
using backend::multiply_pair;
using backend::second_rows;
using backend::second_rows_transposed;

/// body(0), body(1), ... of integral constants, so that arrays that they index can stay in registers.
template <class Body, int... Index>
KOKKOS_INLINE_FUNCTION void unrolled(std::integer_sequence<int, Index...>, const Body& body) {
  (body(std::integral_constant<int, Index>{}), ...);
}

/// Starts the copy of `Columns` columns of 64 rows to scratch; rows past `count` become zeros.
template <class Units, int Columns, class Team>
KOKKOS_INLINE_FUNCTION void copy_tile(const Team& team, bfloat16* to, int to_stride, const bfloat16* from,
                                      std::int64_t stride, std::int64_t count) {
  constexpr int packets = Columns / 8;
  for (int item = team.rank(); item < MatrixTiles::tokens * packets; item += MatrixTiles::threads) {
    const int row = item / packets, packet = item % packets;
    const bool exists = row < count;
    Units::copy_async(to + row * to_stride + packet * 8, from + (exists ? row * stride : 0) + packet * 8,
                      exists);
  }
}

/// ChunkScores on matrix units: a team for each pair of tiles of a chunk. Rows and columns past the chunk become zeros,
/// where they are within its width.
template <class Units>
struct TileScores : MatrixTiles {
  ScanOperands<bfloat16> of;
  float* scores;
  std::int64_t tiles;

  static constexpr std::size_t scratch_bytes = 2 * wide_tile * sizeof(bfloat16);

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t pair = quotient(team.league_rank(), tiles * tiles);
    const int tile = static_cast<int>(team.league_rank() - pair * tiles * tiles);
    const int from = tile / static_cast<int>(tiles) * tokens, to = tile % static_cast<int>(tiles) * tokens;
    const ChunkPlace at = of.place(pair, of.shape.groups);
    if (to > from || from >= at.count) return;
    bfloat16* c = team.template scratch<bfloat16>();
    bfloat16* b = c + wide_tile;
    copy_tile<Units, state>(team, c, wide_stride, of.c.data + (at.row + from) * of.c.stride + at.lane * state,
                            of.c.stride, at.count - from);
    copy_tile<Units, state>(team, b, wide_stride, of.b.data + (at.row + to) * of.b.stride + at.lane * state,
                            of.b.stride, at.count - to);
    Units::wait_for_copies();
    team.barrier();
    // A warp has 16 rows and 32 columns.
    const int lane = team.rank() % 32, row = team.rank() / 32 % 4 * 16, column = team.rank() / 128 * 32;
    float sums[4][4] = {};
    for (int k = 0; k < state; k += 16) {
      std::uint32_t first[4], second[4];
      Units::load(first, first_rows(c, wide_stride, row, k, lane));
      for (int half = 0; half < 2; ++half) {
        Units::load(second, second_rows(b, wide_stride, k, column + half * 16, lane));
        multiply_pair<Units>(sums[2 * half], sums[2 * half + 1], first, second);
      }
    }
    float* result = scores + of.scores_begin(at, at.lane) + from * of.width + to;
    for (int block = 0; block < 4; ++block)
      for (int i = 0; i < 4; ++i) {
        const int t = row + lane / 4 + i / 2 * 8, s = column + block * 8 + lane % 4 * 2 + i % 2;
        if (from + t < of.width && to + s < of.width) result[t * of.width + s] = sums[block][i];
      }
  }
};

}  // namespace encore::kernels::impl
