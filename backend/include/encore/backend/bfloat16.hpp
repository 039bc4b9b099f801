// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#define ENCORE_HOST_DEVICE __host__ __device__
#else
#define ENCORE_HOST_DEVICE
#endif

namespace encore::backend {

/// Storage type for bfloat16 on every backend: the upper half of an IEEE float32, rounded to nearest even.
/// Kokkos' own bhalf_t is an alias of float in host-only builds, so it cannot serve as a storage type.
struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default;

  ENCORE_HOST_DEVICE explicit bfloat16(float value) : bits(round_to_bits(value)) {}
  ENCORE_HOST_DEVICE explicit bfloat16(double value) : bits(round_to_bits(static_cast<float>(value))) {}

  ENCORE_HOST_DEVICE operator float() const {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
#else
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
#endif
  }

 private:
  ENCORE_HOST_DEVICE static std::uint16_t round_to_bits(float value) {
#if defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    std::uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    if ((wide & 0x7fffffffU) > 0x7f800000U)
      return static_cast<std::uint16_t>((wide >> 16) | 0x40U);  // quiet NaN
    return static_cast<std::uint16_t>((wide + 0x7fffU + ((wide >> 16) & 1U)) >> 16);
#endif
  }
};

static_assert(sizeof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);

}  // namespace encore::backend
