// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

/// What CUDA C++ has no words for: barriers in shared memory, copies of boxes of a tensor into it (TMA), and products of
/// a group of four warps (wgmma). For device code of compute capability 9.0a.
namespace encore::backend::impl::hopper {

using Major = cute::SM90::GMMA::Major;

/// Operands lie in shared memory as boxes of 64 elements a row, 128 bytes swizzled, as the TMA puts them there.
inline constexpr int box_columns = 64;
inline constexpr int box_rows = 64;
inline constexpr int row_bytes = 128;
inline constexpr int box_bytes = box_rows * row_bytes;

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void initialize_barrier(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
/// Makes initialized barriers known to the TMA.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ inline void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives at the barrier in the same place of a block of the cluster.
__device__ inline void arrive_at(std::uint64_t* barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
/// Waits for all threads of all blocks of the cluster.
__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ inline int block_of_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&map)) : "memory");
}

/// Arrives, and has the barrier wait for so many bytes of copies as well.
__device__ inline void expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ inline void wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Waits for `threads` threads that use barrier `name`, 1 to 15.
__device__ inline void meet(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
/// What this thread wrote into shared memory can then be seen by products.
__device__ inline void publish_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void load_box(void* to, const CUtensorMap& map, std::uint64_t* barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void load_box(void* to, const CUtensorMap& map, std::uint64_t* barrier, int x, int y, int z,
                                int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
/// `bytes` that lie one behind the other; all are multiples of 16.
__device__ inline void load_bytes(void* to, const void* from, int bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
/// Into the same place of two blocks of a cluster, whose barriers both hear of it.
__device__ inline void load_box_for_both(void* to, const CUtensorMap& map, std::uint64_t* barrier, int x,
                                         int y) {
  constexpr std::uint16_t both = 3;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(barrier)), "h"(both), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void load_box(void* to, const CUtensorMap& map, std::uint64_t* barrier, int x, int y,
                                int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

/// Of an operand whose 64 x 16 parts are multiplied; `major` tells along which of its extents a row in memory goes.
template <Major major>
__device__ inline std::uint64_t descriptor_of(const void* operand) {
  // Along K the rows of a group of 8 lie one behind the other; else LBO leads to the next box, SBO to the next 8 of K.
  constexpr std::uint64_t group_of_rows = 8 * row_bytes >> 4, next_box = box_bytes >> 4, swizzled_by_128 = 1;
  constexpr std::uint64_t leading = major == Major::K ? 1 : next_box;
  return std::uint64_t(shared_address(operand) >> 4 & 0x3fff) | leading << 16 | group_of_rows << 32 |
         swizzled_by_128 << 62;
}
/// What 16 more of K add to a descriptor.
template <Major major>
inline constexpr std::uint64_t descriptor_step = (major == Major::K ? 32 : 16 * row_bytes) >> 4;

template <int N, Major first, Major second>
struct InstructionOf;
template <Major first, Major second>
struct InstructionOf<64, first, second> {
  using Type = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<first, second>;
};
template <Major first, Major second>
struct InstructionOf<128, first, second> {
  using Type = cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_SS<first, second>;
};
template <Major first, Major second>
struct InstructionOf<192, first, second> {
  using Type = cute::SM90::GMMA::MMA_64x192x16_F32BF16BF16_SS<first, second>;
};

template <class Instruction, int Size, std::size_t... I>
__device__ inline void multiply(std::uint64_t first, std::uint64_t second, float (&sum)[Size], bool adds,
                                std::index_sequence<I...>) {
  Instruction::fma(first, second, sum[I]...,
                   adds ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero);
}
/// sum [64, N] (+)= first [64, 16] * second [16, N], in the background.
template <int N, Major first_major, Major second_major>
__device__ inline void multiply(std::uint64_t first, std::uint64_t second, float (&sum)[N / 2], bool adds) {
  multiply<typename InstructionOf<N, first_major, second_major>::Type>(first, second, sum, adds,
                                                                       std::make_index_sequence<N / 2>{});
}

template <class Instruction, std::size_t... I>
__device__ inline void multiply(const std::uint32_t (&first)[4], std::uint64_t second, float (&sum)[32],
                                bool adds, std::index_sequence<I...>) {
  Instruction::fma(first[0], first[1], first[2], first[3], second, sum[I]...,
                   adds ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero);
}
/// sum [64, 64] (+)= first [64, 16], in registers, * second [16, 64], in the background.
template <Major second_major>
__device__ inline void multiply(const std::uint32_t (&first)[4], std::uint64_t second, float (&sum)[32],
                                bool adds) {
  multiply<cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<Major::K, second_major>>(
      first, second, sum, adds, std::make_index_sequence<32>{});
}

/// Keeps the compiler from moving what it does with the sums past here.
template <int Size>
__device__ inline void hold(float (&sum)[Size]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

/// Lane q of four neighbours gives v[0..3] and gets what they had in v[q], in their order.
__device__ inline void transpose_among_four(std::uint32_t (&v)[4], int lane) {
  const bool odd = (lane & 1) != 0, upper = (lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffU, odd ? v[i] : v[i + 1], 1);
    v[i] = odd ? got : v[i];
    v[i + 1] = odd ? v[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffU, upper ? v[i] : v[i + 2], 2);
    v[i] = upper ? got : v[i];
    v[i + 2] = upper ? v[i + 2] : got;
  }
}

/// As meet_neighbours() of the launch gateway, whose header brings Kokkos.
__device__ inline void meet_neighbours() {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace encore::backend::impl::hopper
