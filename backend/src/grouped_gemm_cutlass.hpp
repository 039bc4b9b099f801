// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grouped_store_cutlass.hpp"

#include <type_traits>

namespace encore::backend::impl {

/// `blocks` of a cluster, one or two, compute neighbouring tiles at a time, and share the operand that is the same for
/// both: a tile's rows where rows are multiplied, its columns where they are summed over.
/// The blocks of the kernel stay on their multiprocessors and take the tiles in turn. One thread has the TMA bring
/// boxes of both operands into a ring of stages; two groups of four warps take a tile each and multiply, so that one
/// stores while the other computes. The second half of a tile's rows is neither loaded nor multiplied where a group
/// does not reach it, and rows that belong to other groups are loaded but never stored; where rows are summed over,
/// they are overwritten with zeros in shared memory.
template <GroupedKind kind, int N, class Result, int blocks>
struct GroupedKernel {
  using Major = hopper::Major;
  using Store = GroupedStore<GroupedKernel>;
  using Element = Result;
  static constexpr int block_count = blocks, columns_of_tile = N;
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
    std::uint64_t *full, *empty, *turn;    ///< turn: of each group of warps, given by the other one
    std::int32_t *before, *begins, *rows;  ///< of each group: tiles before it, first row, number of rows

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

  __device__ static int rank() { return blocks == 1 ? 0 : hopper::block_of_cluster(); }
  __device__ static int first_tile() { return blockIdx.x / blocks; }
  __device__ static int tile_stride() { return gridDim.x / blocks; }
  static constexpr int blocks_down = of_weights ? blocks : 1, blocks_across = of_weights ? 1 : blocks;
  __host__ __device__ static constexpr int grouped_tiles_in(int extent, int tile) {
    return (extent + tile - 1) / tile;
  }

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
    const int tiles_down = grouped_tiles_in(t.extent, rows_of_tile * blocks_down);
    t.column = (place / tiles_down * blocks_across + (of_weights ? 0 : rank())) * N;
    t.row = (place % tiles_down * blocks_down + (of_weights ? rank() : 0)) * rows_of_tile;
    t.summed = of_weights ? rows : a.k;
    t.steps = (t.summed + step - 1) / step;
    return t;
  }

  __device__ static void count_tiles(const GroupedArguments& a, const Shared& shared) {
    const int lane = threadIdx.x % 32, across = grouped_tiles_in(a.n, N * blocks_across);
    int sum = 0;
    for (int first = 0; first < a.groups; first += 32) {
      const int group = first + lane;
      int rows = 0, tiles = 0;
      if (group < a.groups) {
        const int begin = a.begins[group];
        rows = a.ends[group] - begin;
        shared.begins[group] = begin;
        shared.rows[group] = rows;
        tiles = grouped_tiles_in(of_weights ? a.m : rows, rows_of_tile * blocks_down) * across;
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
    for (int tile = first_tile(); tile < tiles; tile += tile_stride()) {
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
          else if constexpr (blocks == 1)
            hopper::load_box(to, a.first, full, s * step, t.begin + t.row + h * half);
          else if (h == rank())
            hopper::load_box_for_both(to, a.first, full, s * step, t.begin + t.row + h * half);
        }
        if constexpr (second_major == Major::K) {
          hopper::load_box(shared.second(at.stage), a.second, full, s * step, t.column, t.group);
        } else {
          for (int box = 0; box < N / hopper::box_columns; ++box) {
            std::byte* to = shared.second(at.stage) + box * hopper::box_bytes;
            const int column = t.column + box * hopper::box_columns;
            if constexpr (!of_weights)
              hopper::load_box(to, a.second, full, column, s * step, t.group);
            else if constexpr (blocks == 1)
              hopper::load_box(to, a.second, full, column, t.begin + s * step);
            else if (box % blocks == rank())
              hopper::load_box_for_both(to, a.second, full, column, t.begin + s * step);
          }
        }
        at.advance(1);
      }
    }
  }

  /// Zeros for the rows from `rows`, the group's last ones, to `end`.
  __device__ static void clear_rows(const Shared& shared, int stage, int halves, int rows, int end,
                                    int consumer) {
    const int thread = threadIdx.x % threads_of_group;
    const auto clear = [&](std::byte* box) {
      for (int at = rows * hopper::row_bytes + thread * 16; at < end * hopper::row_bytes;
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
    hopper::wait(&shared.full[at.stage], at.parity);
    const std::uint64_t first = hopper::descriptor_of<first_major>(shared.first(at.stage));
    const std::uint64_t second = hopper::descriptor_of<second_major>(shared.second(at.stage));
    if constexpr (of_weights) {
      if (const int rows = t.summed - s * step; rows < step) {
        const int parts = grouped_tiles_in(rows, 16);
        if (rows % 16 != 0) clear_rows(shared, at.stage, halves, rows, parts * 16, consumer);
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
          hold<halves>(sum);
          cute::warpgroup_arrive();
          multiply_part<halves>(first, second, part, adds || part > 0, sum);
          cute::warpgroup_commit_batch();
        }
        return;
      }
    }
    hold<halves>(sum);
    cute::warpgroup_arrive();
#pragma unroll
    for (int part = 0; part < step / 16; ++part)
      multiply_part<halves>(first, second, part, adds || part > 0, sum);
    cute::warpgroup_commit_batch();
  }

  template <int halves>
  __device__ static void multiply_part(std::uint64_t first, std::uint64_t second, int part, bool adds,
                                       float (&sum)[2][N / 2]) {
    constexpr std::uint64_t next_half = hopper::box_bytes >> 4;
#pragma unroll
    for (int h = 0; h < halves; ++h)
      hopper::multiply<N, first_major, second_major>(
          first + h * next_half + part * hopper::descriptor_step<first_major>,
          second + part * hopper::descriptor_step<second_major>, sum[h], adds);
  }

  template <int halves>
  __device__ static void hold(float (&sum)[2][N / 2]) {
#pragma unroll
    for (int h = 0; h < halves; ++h) hopper::hold(sum[h]);
  }

  __device__ static void release(const Shared& shared, const Position& at) {
    const int lane = threadIdx.x % 32;
    if constexpr (blocks == 1) {
      if (lane == 0) hopper::arrive(&shared.empty[at.stage]);
    } else {
      if (lane < blocks) hopper::arrive_at(&shared.empty[at.stage], lane);
    }
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

  __device__ static void compute(const GroupedArguments& a, const Shared& shared, int consumer) {
    Position at;
    int group = 0, next = 0;
    std::uint32_t turns = 0;
    const int tiles = shared.before[a.groups];
    for (int tile = first_tile(); tile < tiles; tile += tile_stride(), next ^= 1) {
      const Tile t = tile_of(a, shared, tile, group);
      if (next != consumer) {
        at.advance(t.steps);
        continue;
      }
      if (tile >= tile_stride()) hopper::wait(&shared.turn[consumer], turns++ & 1);
      float sum[2][N / 2];
      if (t.steps == 0) {
        pass_turn(shared, consumer);
        if (!a.accumulate) Store::store_zeros(a, t);
      } else if (t.halves() == 2) {
        multiply<2>(shared, t, at, consumer, sum);
        Store::template store<2>(a, t, sum);
      } else {
        multiply<1>(shared, t, at, consumer, sum);
        Store::template store<1>(a, t, sum);
      }
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
    hopper::prefetch(arguments.first);
    hopper::prefetch(arguments.second);
    for (int stage = 0; stage < Kernel::stages; ++stage) {
      hopper::initialize_barrier(&shared.full[stage], 1);
      hopper::initialize_barrier(&shared.empty[stage], Kernel::threads_of_group / 32 * Kernel::block_count);
    }
    for (int consumer = 0; consumer < 2; ++consumer)
      hopper::initialize_barrier(&shared.turn[consumer], Kernel::threads_of_group / 32);
    hopper::publish_barriers();
  }
  hopper::meet_neighbours();
  if (threadIdx.x < 32) Kernel::count_tiles(arguments, shared);
  __syncthreads();
  if constexpr (Kernel::block_count > 1) hopper::meet_cluster();
  if (threadIdx.x < Kernel::threads_of_group) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) Kernel::load(arguments, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Kernel::compute(arguments, shared, threadIdx.x / Kernel::threads_of_group - 1);
  }
  // The other block may still write here.
  if constexpr (Kernel::block_count > 1) hopper::meet_cluster();
#endif
}

}  // namespace encore::backend::impl
