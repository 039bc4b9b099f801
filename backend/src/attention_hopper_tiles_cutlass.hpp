// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_hopper_cutlass.hpp"
#include "hopper_instructions_cutlass.hpp"
#include "tensor_maps_cutlass.hpp"

#include <encore/backend/error.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <string>

namespace encore::backend::impl::hopper {

inline constexpr int group_threads = 128;
inline constexpr int tile_rows = 64;  ///< of queries or keys; as many columns
inline constexpr int tile_bytes = box_bytes;
inline constexpr int merged_row = 64 + 8;  ///< floats, so that rows fall into different banks
inline constexpr int merged_floats = tile_rows * merged_row;

/// The first operand, 64 x 64, of products: 16 rows for each warp, 16 columns a part, as registers of mma.m16n8k16
/// (MatrixUnits tells how).
struct Fragments {
  std::uint32_t part[4][4];

  /// From sums: a lane has columns 8 n + q and q + 1 of rows g and g + 8 at 4 n, with g = lane / 4, q = 2 (lane % 4).
  __device__ void pack(const float (&sums)[32]) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(sums[8 * k + 2 * i], sums[8 * k + 2 * i + 1]);
        part[k][i] = *reinterpret_cast<const std::uint32_t*>(&two);
      }
  }
};

/// sums = first * second transposed, both tiles; in the background. (Not with the first in registers: across a loop's
/// turns ptxas 13.0 gives such registers to others.)
__device__ inline void multiply_tiles(const std::byte* first, const std::byte* second, float (&sums)[32]) {
  const std::uint64_t a = descriptor_of<Major::K>(first), b = descriptor_of<Major::K>(second);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    multiply<64, Major::K, Major::K>(a + k * descriptor_step<Major::K>, b + k * descriptor_step<Major::K>,
                                     sums, k > 0);
}

/// sums += first * tile; in the background.
__device__ inline void multiply_tile(const Fragments& first, const std::byte* tile, float (&sums)[32]) {
  const std::uint64_t second = descriptor_of<Major::MN>(tile);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    multiply<Major::MN>(first.part[k], second + k * descriptor_step<Major::MN>, sums, true);
}

__device__ inline float exp2_of(float value) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(value));
  return value;
}

/// Puts a group's sums into shared memory, rows of merged_row floats.
__device__ inline void put_sums(float* to, const float (&sums)[32]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  float* upper = to + row * merged_row + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    *reinterpret_cast<float2*>(upper + n * 8) = float2{sums[4 * n], sums[4 * n + 1]};
    *reinterpret_cast<float2*>(upper + 8 * merged_row + n * 8) = float2{sums[4 * n + 2], sums[4 * n + 3]};
  }
}

/// Eight elements as 16 bytes.
struct alignas(16) Eight {
  bfloat16 value[8];
};

/// A group's tiles on their way: `Stages` places for two tiles each, and their barriers.
template <int Stages>
struct TilePipe {
  std::byte* places;
  std::uint64_t* full;

  __device__ std::byte* place(int i) const { return places + i % Stages * 2 * tile_bytes; }
  __device__ std::uint64_t* barrier(int i) const { return full + i % Stages; }
  __device__ void wait_for(int i) const { wait(barrier(i), i / Stages & 1); }
};

template <class Arguments>
void start(void (*kernel)(Arguments), const Arguments& arguments, std::int64_t blocks, int threads,
           int shared_bytes, bool programmatic, CUstream_st* stream) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(static_cast<unsigned>(threads));
  launch.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = programmatic ? 1 : 0;
  cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status == cudaSuccess) status = cudaLaunchKernelEx(&launch, kernel, arguments);
  if (status != cudaSuccess)
    throw DeviceError(std::string("attention on Hopper did not start: ") + cudaGetErrorString(status));
}

template <class Arguments>
void load_kernel(void (*kernel)(Arguments), int shared_bytes) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess)
    throw DeviceError(std::string("attention on Hopper cannot be loaded: ") + cudaGetErrorString(status));
}

}  // namespace encore::backend::impl::hopper
