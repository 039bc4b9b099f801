// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grouped_shapes.hpp"

#include <encore/backend/launch.hpp>

namespace encore::backend::impl {

/// A block of 256 threads computes 64 x 64 elements of a result, 4 x 4 a thread, from blocks of both operands that it
/// puts into shared memory, 16 deep.
inline constexpr int grouped_threads = 256;
inline constexpr int grouped_tile = 64;
inline constexpr int grouped_depth = 16;
/// Of the first operand's block, padded so that its columns fall into different banks when they are written.
inline constexpr int grouped_tile_stride = grouped_tile + 4;
inline constexpr std::size_t grouped_scratch_bytes = 2 * grouped_depth * grouped_tile_stride * sizeof(float);
using GroupedTeam = CudaTeam<grouped_threads>;

/// One product as the kernel sees it: result(i, j) = sum of first(i, p) * second(p, j).
template <class T, class Result>
struct CudaProduct {
  const T* first;
  std::int64_t first_row, first_depth;  ///< between elements of a column, of a row
  const T* second;
  std::int64_t second_depth, second_column;
  Result* result;
  std::int64_t result_stride;
  std::int64_t m, n, k;
  const T* bias;  ///< [n], or null
  bool accumulate;
};

/// tile[p][i] = source(begin + i, depth_begin + p); zero outside, where nothing is read.
template <class T>
__device__ void load_grouped_tile(const GroupedTeam& team, const T* source, std::int64_t step,
                                  std::int64_t depth_step, std::int64_t begin, std::int64_t end,
                                  std::int64_t depth_begin, std::int64_t depth_end, float* tile) {
#pragma unroll
  for (int load = 0; load < grouped_tile * grouped_depth / grouped_threads; ++load) {
    const int place = load * grouped_threads + team.rank();
    // Neighbouring threads read neighbouring addresses.
    const int i = depth_step == 1 ? place / grouped_depth : place % grouped_tile;
    const int p = depth_step == 1 ? place % grouped_depth : place / grouped_tile;
    const bool inside = begin + i < end && depth_begin + p < depth_end;
    tile[p * grouped_tile_stride + i] =
        inside ? static_cast<float>(source[(begin + i) * step + (depth_begin + p) * depth_step]) : 0.0F;
  }
}

template <class T, class Result>
__device__ void compute_grouped_tile(const GroupedTeam& team, const CudaProduct<T, Result>& product,
                                     std::int64_t row, std::int64_t column) {
  auto* first = team.scratch<float>();
  float* second = first + grouped_depth * grouped_tile_stride;
  const int x = team.rank() % 16;
  const int y = team.rank() / 16;
  float sums[4][4] = {};
  for (std::int64_t depth = 0; depth < product.k; depth += grouped_depth) {
    team.barrier();
    load_grouped_tile(team, product.first, product.first_row, product.first_depth, row, product.m, depth,
                      product.k, first);
    load_grouped_tile(team, product.second, product.second_column, product.second_depth, column, product.n,
                      depth, product.k, second);
    team.barrier();
#pragma unroll
    for (int p = 0; p < grouped_depth; ++p) {
      const float4 a = *reinterpret_cast<const float4*>(first + p * grouped_tile_stride + 4 * y);
      const float4 b = *reinterpret_cast<const float4*>(second + p * grouped_tile_stride + 4 * x);
      const float left[4] = {a.x, a.y, a.z, a.w};
      const float right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[r][c] += left[r] * right[c];
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const std::int64_t i = row + 4 * y + r;
    if (i >= product.m) continue;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::int64_t j = column + 4 * x + c;
      if (j >= product.n) continue;
      float value = sums[r][c];
      if (product.bias != nullptr) value += static_cast<float>(product.bias[j]);
      Result& destination = product.result[i * product.result_stride + j];
      if (product.accumulate) value += static_cast<float>(destination);
      destination = Result(value);
    }
  }
}

/// The group of the `tile`-th tile of rows, and the row of the group at which it begins; group -1 past the last.
/// Each warp looks at 32 groups at a time.
__device__ inline void find_row_tile(const RowGroups& groups, int tile, int& group, int& row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int count = static_cast<int>(groups.groups);
  int before = 0;
  for (int base = 0; base < count; base += 32) {
    const int mine = base + lane;
    const int tiles =
        mine < count ? (groups.ends[mine] - groups.begins[mine] + grouped_tile - 1) / grouped_tile : 0;
    int after = tiles;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffU, after, offset);
      if (lane >= offset) after += other;
    }
    after += before;
    const unsigned found = __ballot_sync(0xffffffffU, tile < after);
    if (found != 0) {
      const int owner = __ffs(static_cast<int>(found)) - 1;
      group = base + owner;
      row = (tile - __shfl_sync(0xffffffffU, after - tiles, owner)) * grouped_tile;
      return;
    }
    before = __shfl_sync(0xffffffffU, after, 31);
  }
  group = -1;
}

/// Blocks beyond the tiles that there are return at once.
template <class T>
struct CudaRowsKernel {
  RowGroups groups;
  MatrixOperand<const T> input;
  MatrixOperand<T> result;
  const T* weights;
  const T* bias;
  bool transposed;
  std::int64_t across;

  __device__ void operator()(const GroupedTeam& team) const {
    int group;
    int row;
    find_row_tile(groups, static_cast<int>(team.league_rank() / across), group, row);
    if (group < 0) return;
    const std::int64_t n = result.columns;
    const std::int64_t k = input.columns;
    const std::int64_t begin = groups.begins[group];
    const CudaProduct<T, T> product{input.data + begin * input.stride,
                                    input.stride,
                                    1,
                                    weights + group * n * k,
                                    transposed ? 1 : n,
                                    transposed ? k : 1,
                                    result.data + begin * result.stride,
                                    result.stride,
                                    groups.ends[group] - begin,
                                    n,
                                    k,
                                    bias != nullptr ? bias + group * n : nullptr,
                                    false};
    compute_grouped_tile(team, product, row, team.league_rank() % across * grouped_tile);
  }
};

template <class T, class Result>
struct CudaWeightsKernel {
  RowGroups groups;
  MatrixOperand<const T> first, second;
  Result* result;
  bool accumulate;
  std::int64_t across, down;

  __device__ void operator()(const GroupedTeam& team) const {
    const std::int64_t group = team.league_rank() / (across * down);
    const std::int64_t tile = team.league_rank() % (across * down);
    const std::int64_t begin = groups.begins[group];
    const std::int64_t rows = groups.ends[group] - begin;
    if (accumulate && rows == 0) return;
    const std::int64_t m = first.columns;
    const std::int64_t n = second.columns;
    const CudaProduct<T, Result> product{first.data + begin * first.stride,
                                         1,
                                         first.stride,
                                         second.data + begin * second.stride,
                                         second.stride,
                                         1,
                                         result + group * m * n,
                                         n,
                                         m,
                                         n,
                                         rows,
                                         nullptr,
                                         accumulate};
    compute_grouped_tile(team, product, tile / across * grouped_tile, tile % across * grouped_tile);
  }
};

}  // namespace encore::backend::impl
