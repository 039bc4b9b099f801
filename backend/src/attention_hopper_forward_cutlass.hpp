// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_hopper_tiles_cutlass.hpp"

#include <cmath>

namespace encore::backend::impl {

void load_hopper_forward();

namespace hopper {

struct ForwardArguments {
  CUtensorMap query, key, value;
  AttentionForward<bfloat16> of;
};

/// A block of 64 queries of a head: online softmax over tiles of keys (Dao, "FlashAttention-2", 2023, algorithm 1). Its
/// groups of warps take every so many tiles, each by its own pipe, and merge what they have at the end.
template <int Groups>
struct ForwardKernel {
  static constexpr int threads = Groups * group_threads;
  static constexpr int stages = 2;
  static constexpr int pipe_bytes = stages * 2 * tile_bytes;
  static constexpr int tiles_bytes = tile_bytes + Groups * pipe_bytes;
  static constexpr int merge_bytes = Groups * (merged_floats + 2 * tile_rows) * 4;
  static constexpr int barriers_begin = tiles_bytes > merge_bytes ? tiles_bytes : merge_bytes;
  static constexpr int shared_bytes = barriers_begin + (1 + Groups * stages) * 8;

  const ForwardArguments& with;
  std::byte* memory;
  int batch, head, query_begin, tokens, window;
  float scale;  ///< to base 2

  __device__ ForwardKernel(const ForwardArguments& arguments, std::byte* shared)
      : with(arguments),
        memory(shared),
        tokens(static_cast<int>(arguments.of.shape.tokens)),
        window(static_cast<int>(window_of(arguments.of.shape))),
        scale(arguments.of.shape.scale * log2_of_e) {
    const AttentionShape& shape = arguments.of.shape;
    const int heads = static_cast<int>(shape.heads), rows = static_cast<int>(shape.batch) * heads;
    const int blocks = (tokens + tile_rows - 1) / tile_rows, rank = static_cast<int>(blockIdx.x);
    // Later queries see more keys: they go first.
    query_begin = (blocks - 1 - rank / rows) * tile_rows;
    batch = rank % rows / heads;
    head = rank % rows % heads;
  }

  __device__ static int group() { return threadIdx.x / group_threads; }
  __device__ std::uint64_t* barriers() const {
    return reinterpret_cast<std::uint64_t*>(memory + barriers_begin);
  }

  __device__ void run() const {
    const AttentionShape& shape = with.of.shape;
    const TilePipe<stages> pipe{memory + tile_bytes + group() * pipe_bytes,
                                barriers() + 1 + group() * stages};
    const int kv_head = head / static_cast<int>(shape.heads / shape.kv_heads);
    const int first = static_cast<int>(first_key(shape, query_begin, tile_rows));
    // The group's tiles: of all up to the queries' own.
    const int count = ((query_begin - first) / tile_rows + Groups - group()) / Groups;
    const auto key_of = [&](int i) { return first + (i * Groups + group()) * tile_rows; };
    const auto fetch = [&](int i) {
      expect(pipe.barrier(i), 2 * tile_bytes);
      load_box(pipe.place(i), with.key, pipe.barrier(i), 0, key_of(i), kv_head, batch);
      load_box(pipe.place(i) + tile_bytes, with.value, pipe.barrier(i), 0, key_of(i), kv_head, batch);
    };
    const bool fetches = threadIdx.x % group_threads == 0;
    if (threadIdx.x == 0) {
      expect(barriers(), tile_bytes);
      load_box(memory, with.query, barriers(), 0, query_begin, head, batch);
    }
    if (fetches)
      for (int i = 0; i < stages && i < count; ++i) fetch(i);

    float sums[32], largest[2], total[2];
    begin(sums, largest, total);
    wait(barriers(), 0);
    for (int i = 0; i < count; ++i) {
      pipe.wait_for(i);
      step(key_of(i), pipe.place(i), sums, largest, total);
      meet(1 + group(), group_threads);
      if (fetches && i + stages < count) fetch(i + stages);
    }
    __syncthreads();
    merge(sums, largest, total);
    __syncthreads();
    finish();
  }

  /// A sink is a score that comes first.
  __device__ void begin(float (&sums)[32], float (&largest)[2], float (&total)[2]) const {
    const bool has_sink = with.of.shape.sinks && group() == 0;
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = has_sink ? with.of.sinks[head] / with.of.shape.scale : -INFINITY;
      total[r] = has_sink && threadIdx.x % 4 == 0 ? 1.0F : 0.0F;  // Each of four lanes has a part.
    }
  }

  __device__ void step(int key, const std::byte* tiles, float (&sums)[32], float (&largest)[2],
                       float (&total)[2]) const {
    float scores[32];
    hold(scores);
    cute::warpgroup_arrive();
    multiply_tiles(memory, tiles, scores);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    hold(scores);
    if (!TileSight::of(query_begin, tile_rows, key, tile_rows, window).all) hide(key, scores);
#pragma unroll
    for (int r = 0; r < 2; ++r) weigh(r, scores, sums, largest[r], total[r]);
    Fragments weights;
    weights.pack(scores);
    hold(sums);
    cute::warpgroup_arrive();
    multiply_tile(weights, tiles + tile_bytes, sums);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    hold(sums);
  }

  /// Keys past the last token come after every query: they need no test of their own.
  __device__ void hide(int key, float (&scores)[32]) const {
    const int lane = threadIdx.x % 32, query = query_begin + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (!sees(query + i / 2 % 2 * 8, key + i / 4 * 8 + lane % 4 * 2 + i % 2, window)) scores[i] = -INFINITY;
  }

  __device__ static float max_of_quad(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffU, value, 2));
  }
  __device__ static float sum_of_quad(float value) {
    value += __shfl_xor_sync(0xffffffffU, value, 1);
    return value + __shfl_xor_sync(0xffffffffU, value, 2);
  }

  /// Makes weights of the scores of row g + 8 r.
  __device__ void weigh(int r, float (&scores)[32], float (&sums)[32], float& largest, float& total) const {
    float now = largest;
#pragma unroll
    for (int n = 0; n < 8; ++n) now = fmaxf(now, fmaxf(scores[4 * n + 2 * r], scores[4 * n + 2 * r + 1]));
    now = max_of_quad(now);
    // Of the first keys a query may see none: what is subtracted from -infinity must be finite.
    const float shift = now == -INFINITY ? 0.0F : now * scale;
    const float rescale = exp2_of(largest * scale - shift);
    largest = now;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int j = 4 * n + 2 * r; j < 4 * n + 2 * r + 2; ++j) {
        scores[j] = exp2_of(scores[j] * scale - shift);
        sum += scores[j];
        sums[j] *= rescale;
      }
    total = total * rescale + sum;
  }

  __device__ float* merged() const { return reinterpret_cast<float*>(memory); }
  /// Of each row: the largest score and the weights' total, [Groups, 64, 2].
  __device__ float2* statistics() const {
    return reinterpret_cast<float2*>(merged() + Groups * merged_floats);
  }

  __device__ void merge(const float (&sums)[32], const float (&largest)[2], const float (&total)[2]) const {
    put_sums(merged() + group() * merged_floats, sums);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = sum_of_quad(total[r]);
      if (lane % 4 == 0) statistics()[group() * tile_rows + row + 8 * r] = float2{largest[r], all};
    }
  }

  __device__ void finish() const {
    for (int item = threadIdx.x; item < tile_rows * 8; item += threads) {
      const int at = item / 8, packet = item % 8, query = query_begin + at;
      if (query >= tokens) break;
      float largest = -INFINITY, total = 0, sums[8] = {};
#pragma unroll
      for (int g = 0; g < Groups; ++g) largest = fmaxf(largest, statistics()[g * tile_rows + at].x);
#pragma unroll
      for (int g = 0; g < Groups; ++g) {
        const float2 part = statistics()[g * tile_rows + at];
        const float factor = exp2_of((part.x - largest) * scale);
        total += part.y * factor;
        const float* from = merged() + g * merged_floats + at * merged_row + packet * 8;
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] += from[i] * factor;
      }
      Eight result;
      for (int i = 0; i < 8; ++i) result.value[i] = bfloat16(sums[i] / total);
      *reinterpret_cast<Eight*>(head_of(with.of.output, batch, head, query) + packet * 8) = result;
      if (packet == 0)
        with.of
            .log_sum_exp[(static_cast<std::int64_t>(batch) * with.of.shape.heads + head) * tokens + query] =
            largest * with.of.shape.scale + logf(total);
    }
  }
};

template <int Groups>
__global__ void __launch_bounds__(ForwardKernel<Groups>::threads, Groups == 1 ? 3 : 1)
    run_forward(const __grid_constant__ ForwardArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  using Kernel = ForwardKernel<Groups>;
  const Kernel kernel(arguments, memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 1 + Groups * Kernel::stages; ++i) initialize_barrier(kernel.barriers() + i, 1);
    publish_barriers();
  }
  meet_neighbours();
  __syncthreads();
  kernel.run();
#endif
}

}  // namespace hopper

}  // namespace encore::backend::impl
