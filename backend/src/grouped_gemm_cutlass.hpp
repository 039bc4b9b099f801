// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grouped_cutlass.hpp"
#include "hopper_instructions_cutlass.hpp"
#include "tensor_maps_cutlass.hpp"

#include <encore/backend/error.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
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

/// The blocks of the kernel stay on their multiprocessors and take the tiles in turn. One thread has the TMA bring
/// boxes of both operands into a ring of stages; two groups of four warps take a tile each and multiply, so that one
/// stores while the other computes. The second half of a tile's rows is neither loaded nor multiplied where a group
/// does not reach it, and rows that belong to other groups are loaded but never stored; where rows are summed over,
/// they are overwritten with zeros in shared memory.
template <GroupedKind kind, int N, class Result>
struct GroupedKernel {
  using Major = hopper::Major;
  static constexpr bool of_weights = kind == GroupedKind::weights;
  static constexpr Major first_major = of_weights ? Major::MN : Major::K;
  static constexpr Major second_major = kind == GroupedKind::rows_by_transposed ? Major::K : Major::MN;

  static constexpr int half = 64, rows_of_tile = 2 * half, step = 64;
  static constexpr int threads_of_group = 128, threads = 3 * threads_of_group;
  static constexpr int first_bytes = 2 * hopper::box_bytes, second_bytes = N * hopper::row_bytes;
  static constexpr int stage_bytes = first_bytes + second_bytes;
  static constexpr int stages = N == 192 ? 5 : N == 128 ? 6 : 8;

  static constexpr int shared_bytes(std::int64_t groups) {
    return 1024 + stages * stage_bytes + (2 * stages + 2) * int(sizeof(std::uint64_t)) +
           (3 * int(groups) + 1) * int(sizeof(std::int32_t));
  }

  struct Shared {
    std::byte* ring;
    std::uint64_t *full, *empty;
    std::uint64_t* turn;  ///< of each group of warps, given by the other one
    std::int32_t *before, *begins,
        *rows;  ///< of each group: tiles before it, its first row, its number of rows

    __device__ Shared(std::byte* memory, int groups) {
      const std::uint32_t place = hopper::shared_address(memory);
      ring = memory + ((place + 1023U & ~1023U) - place);
      full = reinterpret_cast<std::uint64_t*>(ring + stages * stage_bytes);
      empty = full + stages;
      turn = empty + stages;
      before = reinterpret_cast<std::int32_t*>(turn + 2);
      begins = before + groups + 1;
      rows = begins + groups;
    }
    __device__ std::byte* first(int stage) const { return ring + stage * stage_bytes; }
    __device__ std::byte* second(int stage) const { return first(stage) + first_bytes; }
  };

  /// Where in the ring.
  struct Position {
    int stage = 0;
    std::uint32_t parity = 0;

    __device__ void advance(int steps) {
      for (stage += steps; stage >= stages; stage -= stages) parity ^= 1;
    }
  };

  struct Tile {
    int group, begin, row,
        column;         ///< the group's first row; the tile's first row of the group's result, and column
    int extent;         ///< rows of the group's result
    int steps, summed;  ///< steps of 64 along the products' sums, and how long these are

    __device__ int halves() const { return extent - row > half ? 2 : 1; }
  };

  /// `group`: that of an earlier tile.
  __device__ static Tile tile_of(const GroupedArguments& a, const Shared& shared, int tile, int& group) {
    while (tile >= shared.before[group + 1]) ++group;
    const int place = tile - shared.before[group], rows = shared.rows[group];
    Tile t{};
    t.group = group;
    t.begin = shared.begins[group];
    t.extent = of_weights ? a.m : rows;
    const int tiles_down = (t.extent + rows_of_tile - 1) / rows_of_tile;
    t.column = place / tiles_down * N;
    t.row = place % tiles_down * rows_of_tile;
    t.summed = of_weights ? rows : a.k;
    t.steps = (t.summed + step - 1) / step;
    return t;
  }

  __device__ static void count_tiles(const GroupedArguments& a, const Shared& shared) {
    const int lane = threadIdx.x % 32, across = (a.n + N - 1) / N;
    int sum = 0;
    for (int first = 0; first < a.groups; first += 32) {
      const int group = first + lane;
      int rows = 0, tiles = 0;
      if (group < a.groups) {
        const int begin = a.begins[group];
        rows = a.ends[group] - begin;
        shared.begins[group] = begin;
        shared.rows[group] = rows;
        tiles = ((of_weights ? a.m : rows) + rows_of_tile - 1) / rows_of_tile * across;
      }
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffU, tiles, offset);
        if (lane >= offset) tiles += other;
      }
      if (group < a.groups) shared.before[group + 1] = sum + tiles;
      sum += __shfl_sync(0xffffffffU, tiles, 31);
    }
    if (lane == 0) shared.before[0] = 0;
  }

  __device__ static void load(const GroupedArguments& a, const Shared& shared) {
    Position at;
    int group = 0;
    const int tiles = shared.before[a.groups];
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const Tile t = tile_of(a, shared, tile, group);
      const int halves = t.halves();
      for (int s = 0; s < t.steps; ++s) {
        std::uint64_t* full = &shared.full[at.stage];
        hopper::wait(&shared.empty[at.stage], at.parity ^ 1);
        hopper::expect(full, halves * hopper::box_bytes + second_bytes);
        for (int h = 0; h < halves; ++h) {
          std::byte* to = shared.first(at.stage) + h * hopper::box_bytes;
          if constexpr (of_weights)
            hopper::load_box(to, a.first, full, t.row + h * half, t.begin + s * step);
          else
            hopper::load_box(to, a.first, full, s * step, t.begin + t.row + h * half);
        }
        if constexpr (second_major == Major::K) {
          hopper::load_box(shared.second(at.stage), a.second, full, s * step, t.column, t.group);
        } else {
          for (int box = 0; box < N / hopper::box_columns; ++box) {
            std::byte* to = shared.second(at.stage) + box * hopper::box_bytes;
            const int column = t.column + box * hopper::box_columns;
            if constexpr (of_weights)
              hopper::load_box(to, a.second, full, column, t.begin + s * step);
            else
              hopper::load_box(to, a.second, full, column, s * step, t.group);
          }
        }
        at.advance(1);
      }
    }
  }

  /// Zeros for the rows behind the group's last one.
  __device__ static void clear_rows(const Shared& shared, int stage, int halves, int rows, int consumer) {
    const int thread = threadIdx.x % threads_of_group;
    const auto clear = [&](std::byte* box) {
      for (int at = rows * hopper::row_bytes + thread * 16; at < hopper::box_bytes;
           at += threads_of_group * 16)
        *reinterpret_cast<uint4*>(box + at) = uint4{0, 0, 0, 0};
    };
    for (int h = 0; h < halves; ++h) clear(shared.first(stage) + h * hopper::box_bytes);
    for (int box = 0; box < N / hopper::box_columns; ++box)
      clear(shared.second(stage) + box * hopper::box_bytes);
    hopper::publish_writes();
    hopper::meet(1 + consumer, threads_of_group);
  }

  /// One step of the sums, in the background. `adds`: else they begin with it.
  template <int halves>
  __device__ static void multiply_step(const Shared& shared, const Tile& t, const Position& at, int s,
                                       int consumer, bool adds, float (&sum)[2][N / 2]) {
    constexpr std::uint64_t next_half = hopper::box_bytes >> 4;
    hopper::wait(&shared.full[at.stage], at.parity);
    if constexpr (of_weights)
      if (const int rows = t.summed - s * step; rows < step)
        clear_rows(shared, at.stage, halves, rows, consumer);
    const std::uint64_t first = hopper::descriptor_of<first_major>(shared.first(at.stage));
    const std::uint64_t second = hopper::descriptor_of<second_major>(shared.second(at.stage));
    hold<halves>(sum);
    cute::warpgroup_arrive();
#pragma unroll
    for (int part = 0; part < step / 16; ++part)
#pragma unroll
      for (int h = 0; h < halves; ++h)
        hopper::multiply<N, first_major, second_major>(
            first + h * next_half + part * hopper::descriptor_step<first_major>,
            second + part * hopper::descriptor_step<second_major>, sum[h], adds || part > 0);
    cute::warpgroup_commit_batch();
  }

  template <int halves>
  __device__ static void hold(float (&sum)[2][N / 2]) {
#pragma unroll
    for (int h = 0; h < halves; ++h) hopper::hold(sum[h]);
  }

  __device__ static void release(const Shared& shared, const Position& at) {
    if (threadIdx.x % 32 == 0) hopper::arrive(&shared.empty[at.stage]);
  }

  /// The other group of warps may wait for its stages. Those of its tile lie behind those of this one's: a barrier
  /// knows only whether an odd or an even number of its rounds is over, so none may be waited for a round too early.
  __device__ static void pass_turn(const Shared& shared, int consumer) {
    if (threadIdx.x % 32 == 0) hopper::arrive(&shared.turn[1 - consumer]);
  }

  /// At least one step.
  template <int halves>
  __device__ static void multiply(const Shared& shared, const Tile& t, Position& at, int consumer,
                                  float (&sum)[2][N / 2]) {
    Position done = at;
    multiply_step<halves>(shared, t, at, 0, consumer, false, sum);
    at.advance(1);
    hold<halves>(sum);
#pragma unroll 1
    for (int s = 1; s < t.steps; ++s) {
      multiply_step<halves>(shared, t, at, s, consumer, true, sum);
      cute::warpgroup_wait<1>();
      hold<halves>(sum);
      release(shared, done);
      done = at;
      at.advance(1);
    }
    pass_turn(shared, consumer);
    hold<halves>(sum);
    cute::warpgroup_wait<0>();
    release(shared, done);
  }

  /// A thread has, of each 8 columns, two neighbours in two rows that are 8 apart.
  template <int halves>
  __device__ static void store(const GroupedArguments& a, const Tile& t, float (&sum)[2][N / 2]) {
    const int lane = threadIdx.x % 32, quarter = lane % 4;
#pragma unroll
    for (int h = 0; h < halves; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = t.row + h * half + threadIdx.x % threads_of_group / 32 * 16 + lane / 4 + 8 * r;
        const bool in_rows = row < t.extent;
        const std::int64_t place =
            of_weights ? std::int64_t(t.group) * a.m + row : std::int64_t(t.begin) + row;
        Result* result = static_cast<Result*>(a.result) + place * a.result_stride;
#pragma unroll
        for (int block = 0; block < N / 8; ++block) {
          const int column = t.column + 8 * block + 2 * quarter;
          add_what_is_there(a, t, in_rows, result, column, sum[h][4 * block + 2 * r],
                            sum[h][4 * block + 2 * r + 1]);
        }
        if constexpr (std::is_same_v<Result, float>) {
#pragma unroll
          for (int block = 0; block < N / 8; ++block) {
            const int column = t.column + 8 * block + 2 * quarter;
            if (in_rows && column < a.n)
              *reinterpret_cast<float2*>(result + column) =
                  float2{sum[h][4 * block + 2 * r], sum[h][4 * block + 2 * r + 1]};
          }
        } else {
#pragma unroll
          for (int blocks = 0; blocks < N / 32; ++blocks) {
            std::uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const __nv_bfloat162 two = __floats2bfloat162_rn(sum[h][16 * blocks + 4 * i + 2 * r],
                                                               sum[h][16 * blocks + 4 * i + 2 * r + 1]);
              packed[i] = *reinterpret_cast<const std::uint32_t*>(&two);
            }
            hopper::transpose_among_four(packed, lane);
            const int column = t.column + 32 * blocks + 8 * quarter;
            if (in_rows && column < a.n)
              *reinterpret_cast<uint4*>(result + column) = uint4{packed[0], packed[1], packed[2], packed[3]};
          }
        }
      }
    }
  }

  /// The bias, or what the result holds.
  __device__ static void add_what_is_there(const GroupedArguments& a, const Tile& t, bool in_rows,
                                           const Result* result, int column, float& first, float& second) {
    if (!in_rows || column >= a.n) return;
    if constexpr (of_weights) {
      if (!a.accumulate) return;
      first += static_cast<float>(result[column]);
      second += static_cast<float>(result[column + 1]);
    } else {
      if (a.bias == nullptr) return;
      const __nv_bfloat16* bias = a.bias + std::int64_t(t.group) * a.n + column;
      first += static_cast<float>(bias[0]);
      second += static_cast<float>(bias[1]);
    }
  }

  __device__ static void compute(const GroupedArguments& a, const Shared& shared, int consumer) {
    Position at;
    int group = 0, next = 0;
    std::uint32_t turns = 0;
    const int tiles = shared.before[a.groups];
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, next ^= 1) {
      const Tile t = tile_of(a, shared, tile, group);
      if (next != consumer) {
        at.advance(t.steps);
        continue;
      }
      if (tile >= gridDim.x) hopper::wait(&shared.turn[consumer], turns++ & 1);
      float sum[2][N / 2];
      if (t.steps == 0) {
        pass_turn(shared, consumer);
        if (!a.accumulate) store_zeros(a, t);
      } else if (t.halves() == 2) {
        multiply<2>(shared, t, at, consumer, sum);
        store<2>(a, t, sum);
      } else {
        multiply<1>(shared, t, at, consumer, sum);
        store<1>(a, t, sum);
      }
    }
  }

  /// Where there is nothing to sum.
  __device__ static void store_zeros(const GroupedArguments& a, const Tile& t) {
    constexpr int elements = 16 / sizeof(Result), across = N / elements;
    for (int i = threadIdx.x % threads_of_group; i < rows_of_tile * across; i += threads_of_group) {
      const int row = t.row + i / across, column = t.column + i % across * elements;
      if (row < t.extent && column < a.n)
        *reinterpret_cast<uint4*>(static_cast<Result*>(a.result) +
                                  (std::int64_t(t.group) * a.m + row) * a.result_stride + column) =
            uint4{0, 0, 0, 0};
    }
  }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads, 1)
    run_grouped(const __grid_constant__ GroupedArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  const typename Kernel::Shared shared(memory, arguments.groups);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Kernel::stages; ++stage) {
      hopper::initialize_barrier(&shared.full[stage], 1);
      hopper::initialize_barrier(&shared.empty[stage], Kernel::threads_of_group / 32);
    }
    for (int consumer = 0; consumer < 2; ++consumer)
      hopper::initialize_barrier(&shared.turn[consumer], Kernel::threads_of_group / 32);
    hopper::publish_barriers();
  }
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (threadIdx.x < 32) Kernel::count_tiles(arguments, shared);
  __syncthreads();
  if (threadIdx.x < Kernel::threads_of_group) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) Kernel::load(arguments, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Kernel::compute(arguments, shared, threadIdx.x / Kernel::threads_of_group - 1);
  }
#endif
}

template <class Kernel>
void load_grouped() {
  const cudaError_t status =
      cudaFuncSetAttribute(&run_grouped<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           Kernel::shared_bytes(cutlass_most_groups));
  if (status != cudaSuccess)
    throw DeviceError(std::string("a grouped matrix product cannot be loaded: ") +
                      cudaGetErrorString(status));
}

template <class Kernel>
void launch_grouped(const CutlassGroupedProduct& product) {
  GroupedArguments arguments{};
  arguments.first = map_of_rows(product.first);
  arguments.second = Kernel::of_weights ? map_of_rows(product.second)
                                        : map_of_matrices(product.second, product.groups,
                                                          Kernel::second_major == hopper::Major::K
                                                              ? Kernel::second_bytes / hopper::row_bytes
                                                              : hopper::box_rows);
  arguments.begins = product.begins;
  arguments.ends = product.ends;
  arguments.groups = product.groups;
  arguments.m = product.m;
  arguments.n = product.n;
  arguments.k = product.k;
  arguments.result = product.result;
  arguments.result_stride = product.result_stride;
  arguments.bias = static_cast<const __nv_bfloat16*>(product.bias);
  arguments.accumulate = product.accumulate;

  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(product.multiprocessors));
  launch.blockDim = dim3(Kernel::threads);
  launch.dynamicSmemBytes = static_cast<std::size_t>(Kernel::shared_bytes(product.groups));
  launch.stream = product.stream;
  launch.attrs = &attribute;
  launch.numAttrs = product.programmatic ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelEx(&launch, &run_grouped<Kernel>, arguments);
  if (status != cudaSuccess)
    throw DeviceError(std::string("a grouped matrix product did not start: ") + cudaGetErrorString(status));
}

template <GroupedKind kind, int N, class Result>
CutlassTile grouped_tile(const char* name) {
  using Kernel = GroupedKernel<kind, N, Result>;
  return {name, Kernel::rows_of_tile, N, &load_grouped<Kernel>, &launch_grouped<Kernel>};
}

template <GroupedKind kind>
const std::vector<CutlassTile>& grouped_tiles_of_rows() {
  static const std::vector<CutlassTile> tiles{grouped_tile<kind, 64, __nv_bfloat16>("128x64"),
                                              grouped_tile<kind, 128, __nv_bfloat16>("128x128"),
                                              grouped_tile<kind, 192, __nv_bfloat16>("128x192")};
  return tiles;
}

template <class Result>
const std::vector<CutlassTile>& grouped_tiles_of_weights() {
  static const std::vector<CutlassTile> tiles{grouped_tile<GroupedKind::weights, 128, Result>("128x128"),
                                              grouped_tile<GroupedKind::weights, 192, Result>("128x192")};
  return tiles;
}

}  // namespace encore::backend::impl
