// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_hopper_tiles_cutlass.hpp"

namespace encore::backend::impl {

void load_hopper_backward();

namespace hopper {

struct BackwardArguments {
  CUtensorMap query, key, value, output_gradient;
  AttentionBackward<bfloat16> of;
  AttentionRotation<float> rotation;
};

/// All three gradients in one launch, as MatrixAttentionBackward has them: a block owns 64 keys and values of a key head
/// and goes over the queries that see them, or 64 queries and goes over the keys that they see. Its groups of warps take
/// every so many tiles, each by its own pipe, and add what they have at the end, in order. Own rows are those of all products.
template <int Groups>
struct BackwardKernel {
  static constexpr int threads = Groups * group_threads;
  static constexpr int stages = 2;
  static constexpr int vectors_bytes = tile_rows * 8;
  static constexpr int pipe_bytes = stages * 2 * tile_bytes;
  static constexpr int tiles_bytes = 2 * tile_bytes + Groups * pipe_bytes;
  static constexpr int merge_bytes = Groups * merged_floats * 4;
  static constexpr int vectors_begin = tiles_bytes > merge_bytes ? tiles_bytes : merge_bytes;
  static constexpr int barriers_begin = vectors_begin + Groups * stages * vectors_bytes;
  static constexpr int shared_bytes = barriers_begin + (1 + Groups * stages) * 8;

  __device__ static void run(const BackwardArguments& with, std::byte* memory) {
    const AttentionShape& shape = with.of.shape;
    const int heads = static_cast<int>(shape.heads), kv_heads = static_cast<int>(shape.kv_heads);
    const int key_items = static_cast<int>(shape.batch) * kv_heads;
    const int items = key_items + static_cast<int>(shape.batch) * heads;
    const int blocks = (static_cast<int>(shape.tokens) + tile_rows - 1) / tile_rows;
    const int rank = static_cast<int>(blockIdx.x);
    // Early keys are seen by more queries, late queries see more keys: they go first.
    const int turn = rank / items, item = rank % items;
    if (item < key_items) {
      Block<true>(with, memory, item / kv_heads, item % kv_heads, turn * tile_rows).run();
    } else {
      const int which = item - key_items;
      Block<false>(with, memory, which / heads, which % heads, (blocks - 1 - turn) * tile_rows).run();
    }
  }

  __device__ static std::uint64_t* barriers(std::byte* memory) {
    return reinterpret_cast<std::uint64_t*>(memory + barriers_begin);
  }

  template <bool OfKeys>
  struct Block {
    const BackwardArguments& with;
    std::byte* memory;
    int batch, head, begin;  ///< the head of keys or of queries
    int tokens, window;

    __device__ Block(const BackwardArguments& arguments, std::byte* shared, int at_batch, int at_head,
                     int row)
        : with(arguments),
          memory(shared),
          batch(at_batch),
          head(at_head),
          begin(row),
          tokens(static_cast<int>(arguments.of.shape.tokens)),
          window(static_cast<int>(window_of(arguments.of.shape))) {}

    __device__ static int warp_group() { return threadIdx.x / group_threads; }
    __device__ static int lane() { return threadIdx.x % 32; }
    /// The first of a lane's own rows in the tile; the other is 8 further.
    __device__ static int own_row() { return threadIdx.x / 32 % 4 * 16 + lane() / 4; }
    /// Of a stage's queries, what DescribeQueries has put into row_dots.
    __device__ float* vectors(int i) const {
      return reinterpret_cast<float*>(memory + vectors_begin +
                                      (warp_group() * stages + i % stages) * vectors_bytes);
    }
    __device__ const float* vectors_of(int query_head, int query) const {
      const std::int64_t lane = static_cast<std::int64_t>(batch) * with.of.shape.heads + query_head;
      return with.of.row_dots + 2 * (lane * padded_tokens(tokens) + query);
    }

    struct State {
      float first[32], second[32];
      float2 vectors[2];  ///< of own queries
    };

    __device__ void run() const {
      const AttentionShape& shape = with.of.shape;
      std::uint64_t* own = barriers(memory);
      const TilePipe<stages> pipe{memory + 2 * tile_bytes + warp_group() * pipe_bytes,
                                  own + 1 + warp_group() * stages};
      const int heads_of_key = static_cast<int>(shape.heads / shape.kv_heads);
      const int first = OfKeys ? begin : static_cast<int>(first_key(shape, begin, tile_rows));
      const int end = OfKeys ? static_cast<int>(query_end(shape, begin + tile_rows)) : begin + tile_rows;
      const int tiles = (end - first + tile_rows - 1) / tile_rows;  // Of a head.
      const int first_head = OfKeys ? head * heads_of_key : head / heads_of_key;
      const int all = OfKeys ? tiles * heads_of_key : tiles;
      const int count = (all - warp_group() + Groups - 1) / Groups;
      const auto token_of = [&](int i) { return first + (i * Groups + warp_group()) % tiles * tile_rows; };
      const auto fetch = [&](int i) {
        const int token = token_of(i), of_head = first_head + (i * Groups + warp_group()) / tiles;
        std::uint64_t* full = pipe.barrier(i);
        expect(full, 2 * tile_bytes + (OfKeys ? vectors_bytes : 0));
        load_box(pipe.place(i), OfKeys ? with.query : with.key, full, 0, token, of_head, batch);
        load_box(pipe.place(i) + tile_bytes, OfKeys ? with.output_gradient : with.value, full, 0, token,
                 of_head, batch);
        if constexpr (OfKeys) load_bytes(vectors(i), vectors_of(of_head, token), vectors_bytes, full);
      };
      const bool fetches = threadIdx.x % group_threads == 0;
      if (threadIdx.x == 0) {
        expect(own, 2 * tile_bytes);
        load_box(memory, OfKeys ? with.key : with.query, own, 0, begin, head, batch);
        load_box(memory + tile_bytes, OfKeys ? with.value : with.output_gradient, own, 0, begin, head, batch);
      }
      if (fetches)
        for (int i = 0; i < stages && i < count; ++i) fetch(i);

      State state;
#pragma unroll
      for (int i = 0; i < 32; ++i) state.first[i] = state.second[i] = 0;
      if constexpr (!OfKeys)
        for (int r = 0; r < 2; ++r)
          state.vectors[r] = *reinterpret_cast<const float2*>(vectors_of(head, begin + own_row() + 8 * r));
      wait(own, 0);
      for (int i = 0; i < count; ++i) {
        pipe.wait_for(i);
        step(token_of(i), pipe.place(i), vectors(i), state);
        meet(1 + warp_group(), group_threads);
        if (fetches && i + stages < count) fetch(i + stages);
      }
      __syncthreads();
      const AttentionBackward<bfloat16>& of = with.of;
      add_and_store(state.first, OfKeys ? of.key_gradient : of.query_gradient, shape.scale, with.rotation);
      if constexpr (OfKeys) {
        __syncthreads();
        add_and_store(state.second, of.value_gradient, 1.0F, {});
      }
    }

    __device__ void step(int other, const std::byte* tiles, const float* stage_vectors, State& state) const {
      float weights[32], gradients[32];
      hold(weights);
      hold(gradients);
      cute::warpgroup_arrive();
      multiply_tiles(memory, tiles, weights);
      cute::warpgroup_commit_batch();
      multiply_tiles(memory + tile_bytes, tiles + tile_bytes, gradients);
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<1>();
      hold(weights);
      weigh(other, stage_vectors, state, weights);
      Fragments factor;
      if constexpr (OfKeys) {
        factor.pack(weights);
        hold(state.second);
        cute::warpgroup_arrive();
        multiply_tile(factor, tiles + tile_bytes, state.second);
        cute::warpgroup_commit_batch();
        cute::warpgroup_wait<1>();
      } else {
        cute::warpgroup_wait<0>();
      }
      hold(gradients);
      differentiate(stage_vectors, state, weights, gradients);
      Fragments gradient;
      gradient.pack(gradients);
      hold(state.first);
      cute::warpgroup_arrive();
      multiply_tile(gradient, tiles, state.first);
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<0>();
      hold(state.first);
      hold(state.second);
    }

    /// Logarithm and dot of the query of a lane's sum `i`.
    __device__ static float2 vector_of(const float4 (&two)[8], const State& state, int i) {
      if constexpr (!OfKeys) return state.vectors[i / 2 % 2];
      return i % 2 == 0 ? float2{two[i / 4].x, two[i / 4].y} : float2{two[i / 4].z, two[i / 4].w};
    }
    __device__ static void load_vectors(const float* stage_vectors, float4 (&two)[8]) {
      if constexpr (OfKeys)
#pragma unroll
        for (int n = 0; n < 8; ++n)
          two[n] = reinterpret_cast<const float4*>(stage_vectors)[n * 4 + lane() % 4];
    }

    /// Scores become weights. Keys past the last token come after every query.
    __device__ void weigh(int other, const float* stage_vectors, const State& state,
                          float (&weights)[32]) const {
      const float scale = with.of.shape.scale * log2_of_e;
      float4 two[8];
      load_vectors(stage_vectors, two);
#pragma unroll
      for (int i = 0; i < 32; ++i) weights[i] = exp2_of(weights[i] * scale - vector_of(two, state, i).x);
      const TileSight sight = OfKeys ? TileSight::of(other, tile_rows, begin, tile_rows, window)
                                     : TileSight::of(begin, tile_rows, other, tile_rows, window);
      if (sight.all) return;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int row = begin + own_row() + i / 2 % 2 * 8,
                  column = other + i / 4 * 8 + lane() % 4 * 2 + i % 2;
        if (OfKeys ? !sees(column, row, window) : !sees(row, column, window)) weights[i] = 0;
      }
    }

    /// The weights' gradients become those of the scores.
    __device__ static void differentiate(const float* stage_vectors, const State& state,
                                         const float (&weights)[32], float (&gradients)[32]) {
      float4 two[8];
      load_vectors(stage_vectors, two);
#pragma unroll
      for (int i = 0; i < 32; ++i) gradients[i] = weights[i] * (gradients[i] - vector_of(two, state, i).y);
    }

    /// Items are two packets of a row, half a row apart, which may be pairs of a rotation.
    __device__ void add_and_store(const float (&sums)[32], const HeadsOperand<bfloat16>& to, float factor,
                                  const AttentionRotation<float>& turned) const {
      auto* merged = reinterpret_cast<float*>(memory);
      put_sums(merged + warp_group() * merged_floats, sums);
      __syncthreads();
      for (int item = threadIdx.x; item < tile_rows * 4; item += threads) {
        const int at = item / 4, packet = item % 4, token = begin + at;
        if (token >= tokens) break;
        Eight left = total(merged + at * merged_row + packet * 8, factor);
        Eight right = total(merged + at * merged_row + 32 + packet * 8, factor);
        if (turned.cosine != nullptr) turn_packets_back(turned, token, packet, left, right);
        bfloat16* result = head_of(to, batch, head, token) + packet * 8;
        *reinterpret_cast<Eight*>(result) = left;
        *reinterpret_cast<Eight*>(result + 32) = right;
      }
    }

    /// What all groups have.
    __device__ static Eight total(const float* from, float factor) {
      float sums[8] = {};
#pragma unroll
      for (int g = 0; g < Groups; ++g)
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] += from[g * merged_floats + i];
      Eight result;
#pragma unroll
      for (int i = 0; i < 8; ++i) result.value[i] = bfloat16(sums[i] * factor);
      return result;
    }

    __device__ static void turn_packets_back(const AttentionRotation<float>& rotation, int token, int packet,
                                             Eight& left, Eight& right) {
      const float* cosine = rotation.cosine + static_cast<std::int64_t>(token) * 32;
      const float* sine = rotation.sine + static_cast<std::int64_t>(token) * 32;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (rotation.interleaved) {
          const int pair = packet * 4 + i;
          turn(left.value[2 * i], left.value[2 * i + 1], cosine[pair], -sine[pair]);
          turn(right.value[2 * i], right.value[2 * i + 1], cosine[16 + pair], -sine[16 + pair]);
        } else {
          for (int j = 2 * i; j < 2 * i + 2; ++j)
            turn(left.value[j], right.value[j], cosine[packet * 8 + j], -sine[packet * 8 + j]);
        }
      }
    }
  };
};

template <int Groups>
__global__ void __launch_bounds__(BackwardKernel<Groups>::threads, Groups == 1 ? 2 : 1)
    run_backward(const __grid_constant__ BackwardArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  using Kernel = BackwardKernel<Groups>;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 1 + Groups * Kernel::stages; ++i) initialize_barrier(Kernel::barriers(memory) + i, 1);
    publish_barriers();
  }
  meet_neighbours();
  __syncthreads();
  Kernel::run(arguments, memory);
#endif
}

}  // namespace hopper

}  // namespace encore::backend::impl
