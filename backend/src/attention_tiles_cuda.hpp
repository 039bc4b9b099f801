// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_shapes.hpp"

#include <encore/backend/launch.hpp>

namespace encore::backend::impl {

/// A block of 128 threads works on a score tile as 8 x 16 threads. Thread (y, x) holds the tile's rows
/// r * 8 + y and columns x * Columns + c; it finds column x * Columns + c of a tile at place c * 16 + x, so that
/// neighbouring threads read neighbouring rows of shared memory and own neighbouring columns.
inline constexpr int attention_threads = 128;
using AttentionTeam = CudaTeam<attention_threads>;

/// Shared memory of a tile's row: padded so that 8 threads reading 16 bytes each from 8 rows touch all banks.
template <int HeadDim>
inline constexpr int tile_stride = HeadDim + 4;

template <int Columns>
__device__ inline int column_at(int place) {
  return place % 16 * Columns + place / 16;
}

/// tile[place][d] = factor * source token; zero for tokens past `count` and d from head_dim to a multiple of 4.
/// Columns: 0 keeps the tokens' order, else column_at gives it.
template <int Places, int Columns, int HeadDim, class T>
__device__ void load_tile(const AttentionTeam& team, const T* source, std::int64_t token_stride,
                          std::int64_t count, std::int64_t head_dim, float factor, float* tile) {
  const int lane = team.rank() % 32;
  const int warp = team.rank() / 32;
  const int padded = static_cast<int>((head_dim + 3) / 4 * 4);
  for (int place = warp; place < Places; place += attention_threads / 32) {
    int token = place;
    if constexpr (Columns > 0) token = column_at<Columns>(place);
    const T* row = source + token * token_stride;
    for (int d = lane; d < padded; d += 32)
      tile[place * tile_stride<HeadDim> + d] =
          token < count && d < head_dim ? factor * static_cast<float>(row[d]) : 0.0F;
  }
}

__device__ inline float4 load4(const float* address) { return *reinterpret_cast<const float4*>(address); }

/// scores[r][c] = sum over d of rows_tile[row][d] * columns_tile[column][d].
template <int Rows, int Columns, int HeadDim>
__device__ void tile_scores(const AttentionTeam& team, const float* rows_tile, const float* columns_tile,
                            std::int64_t head_dim, float (&scores)[Rows][Columns]) {
  const int x = team.rank() % 16;
  const int y = team.rank() / 16;
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int c = 0; c < Columns; ++c) scores[r][c] = 0;
  for (int d = 0; d < head_dim; d += 4) {
    float4 column[Columns];
#pragma unroll
    for (int c = 0; c < Columns; ++c)
      column[c] = load4(columns_tile + (c * 16 + x) * tile_stride<HeadDim> + d);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const float4 row = load4(rows_tile + (r * 8 + y) * tile_stride<HeadDim> + d);
#pragma unroll
      for (int c = 0; c < Columns; ++c)
        scores[r][c] += row.x * column[c].x + row.y * column[c].y + row.z * column[c].z + row.w * column[c].w;
    }
  }
}

/// Shared memory of weights [Rows * 8, Columns * 16], in places.
template <int Columns>
inline constexpr int weights_stride = Columns * 16 + 4;

template <int Rows, int Columns>
__device__ void store_weights(const AttentionTeam& team, const float (&values)[Rows][Columns],
                              float* weights) {
  const int x = team.rank() % 16;
  const int y = team.rank() / 16;
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int c = 0; c < Columns; ++c)
      weights[(r * 8 + y) * weights_stride<Columns> + c * 16 + x] = values[r][c];
}

/// Sums over d that a thread holds for its rows: columns 4 * (x + 16 g) + i.
template <int Rows, int HeadDim>
struct RowSums {
  static constexpr int groups = HeadDim / 64;
  float value[Rows][groups][4];

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < Rows; ++r)
#pragma unroll
      for (int g = 0; g < groups; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) value[r][g][i] = 0;
  }

  /// += weights * tile, over all places.
  template <int Columns>
  __device__ void add(const AttentionTeam& team, const float* weights, const float* tile) {
    const int x = team.rank() % 16;
    const int y = team.rank() / 16;
    for (int place = 0; place < Columns * 16; place += 4) {
      float weight[Rows][4];
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        const float4 four = load4(weights + (r * 8 + y) * weights_stride<Columns> + place);
        weight[r][0] = four.x;
        weight[r][1] = four.y;
        weight[r][2] = four.z;
        weight[r][3] = four.w;
      }
#pragma unroll
      for (int p = 0; p < 4; ++p) {
#pragma unroll
        for (int g = 0; g < groups; ++g) {
          const float4 four = load4(tile + (place + p) * tile_stride<HeadDim> + 4 * (x + 16 * g));
#pragma unroll
          for (int r = 0; r < Rows; ++r) {
            value[r][g][0] += weight[r][p] * four.x;
            value[r][g][1] += weight[r][p] * four.y;
            value[r][g][2] += weight[r][p] * four.z;
            value[r][g][3] += weight[r][p] * four.w;
          }
        }
      }
    }
  }

  /// destination token (r * 8 + y), for tokens before `count`, = value times the row's factor.
  template <class T, class Factor>
  __device__ void store(const AttentionTeam& team, T* destination, std::int64_t token_stride,
                        std::int64_t count, std::int64_t head_dim, const Factor& factor) const {
    const int x = team.rank() % 16;
    const int y = team.rank() / 16;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const int token = r * 8 + y;
      if (token >= count) continue;
#pragma unroll
      for (int g = 0; g < groups; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int d = 4 * (x + 16 * g) + i;
          if (d < head_dim) destination[token * token_stride + d] = T(value[r][g][i] * factor(r));
        }
    }
  }
};

/// Over the 16 threads that share a row.
__device__ inline float row_sum(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  return value;
}
__device__ inline float row_max(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  return value;
}

/// 0 or 1 / (1 - probability) for one probability after another; neighbours share a draw of four.
class DropoutDraw {
 public:
  __device__ explicit DropoutDraw(const AttentionDropout& dropout)
      : segment_(dropout.segment), state_(*dropout.state), probability_(*dropout.probability) {
    kept_ = static_cast<float>(1.0 / (1.0 - probability_));
  }

  __device__ float factor(std::uint64_t element) {
    if (element / 4 != quad_) {
      quad_ = element / 4;
      words_ = random_words(state_, segment_, quad_);
    }
    const int lane = static_cast<int>(element % 4);
    const std::uint32_t word = lane < 2 ? (lane == 0 ? words_.word[0] : words_.word[1])
                                        : (lane == 2 ? words_.word[2] : words_.word[3]);
    return static_cast<double>(uniform_of(word)) < probability_ ? 0.0F : kept_;
  }

 private:
  std::uint32_t segment_;
  RandomState state_;
  double probability_;
  float kept_;
  std::uint64_t quad_ = ~std::uint64_t(0);
  PhiloxCounter words_{};
};

}  // namespace encore::backend::impl
