// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/bfloat16.hpp>
#include <encore/backend/space.hpp>

#include <cstdint>

namespace encore::backend {

/// What a warp does with a GPU's matrix units, on bfloat16 with float sums. All 32 lanes call together. Fragments are
/// those of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): with g = lane / 4 and q = 2 * (lane % 4),
///   first [16, 16]: registers hold (g, q), (g + 8, q), (g, q + 8), (g + 8, q + 8) and each one's right neighbour;
///   second [16, 8]: (q, g) and (q + 8, g) and each one's lower neighbour;
///   sums [16, 8]: (g, q), (g, q + 1), (g + 8, q), (g + 8, q + 1).
/// The members are also compiled for hosts, where nothing calls them.
struct MatrixUnits {
  /// Four 8 x 8 matrices: register j of a lane holds row g, columns q and q + 1 of matrix j, whose row r starts at the
  /// address (in a team's scratch, a multiple of 16 bytes) that lane 8 * j + r brings.
  KOKKOS_FUNCTION static void load(std::uint32_t (&registers)[4], const bfloat16* row) {
#if defined(__CUDA_ARCH__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    (void)registers, (void)row;
#endif
  }

  /// The same with each matrix transposed: rows q and q + 1, column g.
  KOKKOS_FUNCTION static void load_transposed(std::uint32_t (&registers)[4], const bfloat16* row) {
#if defined(__CUDA_ARCH__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    (void)registers, (void)row;
#endif
  }

  /// sums += first * second.
  KOKKOS_FUNCTION static void multiply(float (&sums)[4], const std::uint32_t (&first)[4],
                                       std::uint32_t second_upper, std::uint32_t second_lower) {
#if defined(__CUDA_ARCH__)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(second_upper), "r"(second_lower));
#else
    (void)sums, (void)first, (void)second_upper, (void)second_lower;
#endif
  }

  /// The sum over the four lanes with the same g.
  KOKKOS_FUNCTION static float sum_of_quad(float value) {
#if defined(__CUDA_ARCH__)
    value += __shfl_xor_sync(0xffffffffU, value, 1);
    value += __shfl_xor_sync(0xffffffffU, value, 2);
#endif
    return value;
  }

  /// The sum over the eight lanes with the same q.
  KOKKOS_FUNCTION static float sum_of_rows(float value) {
#if defined(__CUDA_ARCH__)
    for (int lanes = 4; lanes < 32; lanes *= 2) value += __shfl_xor_sync(0xffffffffU, value, lanes);
#endif
    return value;
  }

  /// The largest of the four lanes with the same g.
  KOKKOS_FUNCTION static float max_of_quad(float value) {
#if defined(__CUDA_ARCH__)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, 1));
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, 2));
#endif
    return value;
  }

  /// The sum over `Lanes` neighbours, a power of two.
  template <int Lanes>
  KOKKOS_FUNCTION static float sum_of_neighbours(float value) {
#if defined(__CUDA_ARCH__)
    for (int lanes = 1; lanes < Lanes; lanes *= 2) value += __shfl_xor_sync(0xffffffffU, value, lanes);
#endif
    return value;
  }

  /// 2 to the power of a value, to 2 units in the last place; 0 where that is not a normal number.
  KOKKOS_FUNCTION static float exp2(float value) {
#if defined(__CUDA_ARCH__)
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(value));
#endif
    return value;
  }

  /// Starts a copy of 16 bytes to scratch, or of as many zeros. Both addresses are multiples of 16.
  KOKKOS_FUNCTION static void copy_async(bfloat16* to, const bfloat16* from, bool exists) {
#if defined(__CUDA_ARCH__)
    const int bytes = exists ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
#else
    (void)to, (void)from, (void)exists;
#endif
  }
  /// The same of one float.
  KOKKOS_FUNCTION static void copy_async(float* to, const float* from, bool exists) {
#if defined(__CUDA_ARCH__)
    const int bytes = exists ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
#else
    (void)to, (void)from, (void)exists;
#endif
  }
  /// Waits for a thread's own copies; others see them after a barrier.
  KOKKOS_FUNCTION static void wait_for_copies() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  }

  /// Two neighbours, the first in the lower half.
  KOKKOS_FUNCTION static std::uint32_t pack(float first, float second) {
#if defined(__CUDA_ARCH__)
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return bfloat16(first).bits | static_cast<std::uint32_t>(bfloat16(second).bits) << 16;
#endif
  }

 private:
#if defined(__CUDA_ARCH__)
  __device__ static std::uint32_t shared_address(const void* address) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
  }
#endif
};

// Addresses for MatrixUnits::load of the fragments of a 16 x 16 block at (row, column) of a matrix in scratch. `first`:
// as the first operand of a product, [row, k]; `second`: as two second operands side by side, of columns 0 to 7 and 8
// to 15. Where the matrix lies as [k, row] instead of [row, k], the load is a transposed one.

KOKKOS_INLINE_FUNCTION const bfloat16* first_rows(const bfloat16* matrix, int stride, int row, int k,
                                                  int lane) {
  return matrix + (row + lane % 16) * stride + k + lane / 16 * 8;
}
KOKKOS_INLINE_FUNCTION const bfloat16* first_rows_transposed(const bfloat16* matrix, int stride, int row,
                                                             int k, int lane) {
  return matrix + (k + lane % 8 + lane / 16 * 8) * stride + row + lane / 8 % 2 * 8;
}
/// The matrix lies as [k, column], which needs a transposed load.
KOKKOS_INLINE_FUNCTION const bfloat16* second_rows_transposed(const bfloat16* matrix, int stride, int k,
                                                              int column, int lane) {
  return matrix + (k + lane % 8 + lane / 8 % 2 * 8) * stride + column + lane / 16 * 8;
}
/// The matrix lies as [column, k].
KOKKOS_INLINE_FUNCTION const bfloat16* second_rows(const bfloat16* matrix, int stride, int k, int column,
                                                   int lane) {
  return matrix + (column + lane % 8 + lane / 16 * 8) * stride + k + lane / 8 % 2 * 8;
}

/// sums[2] (16 x 16, as two of 16 x 8) += first (16 x 16) * second (16 x 16, as MatrixUnits loads it).
template <class Units>
KOKKOS_INLINE_FUNCTION void multiply_pair(float (&left)[4], float (&right)[4],
                                          const std::uint32_t (&first)[4], const std::uint32_t (&second)[4]) {
  Units::multiply(left, first, second[0], second[1]);
  Units::multiply(right, first, second[2], second[3]);
}

}  // namespace encore::backend
