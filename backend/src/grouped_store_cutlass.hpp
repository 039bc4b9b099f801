// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grouped_cutlass.hpp"
#include "hopper_instructions_cutlass.hpp"

#include <cuda_bf16.h>

#include <type_traits>

namespace encore::backend::impl {

enum class GroupedKind { rows_by_transposed, rows_by_weights, weights };

struct GroupedArguments {
  CUtensorMap first, second;
  const std::int32_t* begins;
  const std::int32_t* ends;
  std::int32_t groups, m, n, k;
  void* result;
  std::int64_t result_stride;
  const __nv_bfloat16* bias;
  bool accumulate;
};

__host__ __device__ constexpr int grouped_tiles_in(int extent, int tile) {
  return (extent + tile - 1) / tile;
}

/// How a group of four warps puts a tile's sums into memory.
template <class Kernel>
struct GroupedStore {
  using Result = typename Kernel::Element;
  using Tile = typename Kernel::Tile;
  static constexpr bool of_weights = Kernel::of_weights;
  static constexpr int columns = Kernel::columns_of_tile, half = Kernel::half;
  static constexpr int rows_of_tile = Kernel::rows_of_tile, threads_of_group = Kernel::threads_of_group;

  /// A thread has, of each 8 columns, two neighbours in two rows that are 8 apart.
  template <int halves>
  __device__ static void store(const GroupedArguments& a, const Tile& t, float (&sum)[2][columns / 2]) {
    const int lane = threadIdx.x % 32, quarter = lane % 4;
    if constexpr (of_weights) {
      if (a.accumulate) add_result<halves>(a, t, sum);
    } else {
      if (a.bias != nullptr) add_bias<halves>(a, t, sum);
    }
#pragma unroll
    for (int h = 0; h < halves; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = row_of(t, h, r);
        const bool in_rows = row < t.extent;
        Result* result = static_cast<Result*>(a.result) + place_of(a, t, row) * a.result_stride;
        if constexpr (std::is_same_v<Result, float>) {
#pragma unroll
          for (int block = 0; block < columns / 8; ++block) {
            const int column = t.column + 8 * block + 2 * quarter;
            if (in_rows && column < a.n)
              *reinterpret_cast<float2*>(result + column) =
                  float2{sum[h][4 * block + 2 * r], sum[h][4 * block + 2 * r + 1]};
          }
        } else {
#pragma unroll
          for (int four = 0; four < columns / 32; ++four) {
            std::uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const __nv_bfloat162 two = __floats2bfloat162_rn(sum[h][16 * four + 4 * i + 2 * r],
                                                               sum[h][16 * four + 4 * i + 2 * r + 1]);
              packed[i] = *reinterpret_cast<const std::uint32_t*>(&two);
            }
            hopper::transpose_among_four(packed, lane);
            const int column = t.column + 32 * four + 8 * quarter;
            if (in_rows && column < a.n)
              *reinterpret_cast<uint4*>(result + column) = uint4{packed[0], packed[1], packed[2], packed[3]};
          }
        }
      }
    }
  }

  __device__ static std::int64_t place_of(const GroupedArguments& a, const Tile& t, int row) {
    return of_weights ? std::int64_t(t.group) * a.m + row : std::int64_t(t.begin) + row;
  }
  __device__ static int row_of(const Tile& t, int h, int r) {
    return t.row + h * half + threadIdx.x % threads_of_group / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
  }

  template <int halves>
  __device__ static void add_bias(const GroupedArguments& a, const Tile& t, float (&sum)[2][columns / 2]) {
    const __nv_bfloat16* bias = a.bias + std::int64_t(t.group) * a.n;
#pragma unroll
    for (int block = 0; block < columns / 8; ++block) {
      const int column = t.column + 8 * block + threadIdx.x % 4 * 2;
      if (column >= a.n) continue;
      const auto two = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(bias + column));
#pragma unroll
      for (int h = 0; h < halves; ++h)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sum[h][4 * block + 2 * r] += two.x;
          sum[h][4 * block + 2 * r + 1] += two.y;
        }
    }
  }

  template <int halves>
  __device__ static void add_result(const GroupedArguments& a, const Tile& t, float (&sum)[2][columns / 2]) {
#pragma unroll
    for (int h = 0; h < halves; ++h)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = row_of(t, h, r);
        const Result* result = static_cast<const Result*>(a.result) + place_of(a, t, row) * a.result_stride;
#pragma unroll
        for (int block = 0; block < columns / 8; ++block) {
          const int column = t.column + 8 * block + threadIdx.x % 4 * 2;
          if (row >= t.extent || column >= a.n) continue;
          sum[h][4 * block + 2 * r] += static_cast<float>(result[column]);
          sum[h][4 * block + 2 * r + 1] += static_cast<float>(result[column + 1]);
        }
      }
  }

  /// Where there is nothing to sum.
  __device__ static void store_zeros(const GroupedArguments& a, const Tile& t) {
    constexpr int elements = 16 / sizeof(Result), across = columns / elements;
    for (int i = threadIdx.x % threads_of_group; i < rows_of_tile * across; i += threads_of_group) {
      const int row = t.row + i / across, column = t.column + i % across * elements;
      if (row < t.extent && column < a.n)
        *reinterpret_cast<uint4*>(static_cast<Result*>(a.result) + place_of(a, t, row) * a.result_stride +
                                  column) = uint4{0, 0, 0, 0};
    }
  }
};

}  // namespace encore::backend::impl
