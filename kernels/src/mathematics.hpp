// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <bit>
#include <cmath>

/// Elementary functions that a host compiler can vectorise (library calls would stay scalar) and that map to
/// the fast instructions of a GPU, with errors of a few units in the last place of float. double is exact.
namespace encore::kernels::impl {

/// exp(n ln 2 + r) = 2^n p(r), with the polynomial of Cephes (Moshier). Saturates at exp(+-87.3) instead of
/// reaching 0 or infinity; NaN stays NaN. The magnitude is limited as an integer: of two comparisons of floats
/// gcc makes branches, and no loop around them would be vectorised.
inline float host_exponential(float argument) {
  constexpr std::uint32_t sign_bit = 0x80000000U;
  constexpr auto largest = std::bit_cast<std::uint32_t>(87.3F);
  constexpr float round_to_integer = 12582912.0F;  // 1.5 * 2^23: the sum's last bit is worth 1.
  const auto bits = std::bit_cast<std::uint32_t>(argument);
  const std::uint32_t magnitude = bits & ~sign_bit;
  const float x = std::bit_cast<float>((magnitude < largest ? magnitude : largest) | (bits & sign_bit));
  const float shifted = x * 1.44269504088896341F + round_to_integer;
  const float n = shifted - round_to_integer;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const auto exponent =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(round_to_integer);
  const float result = p * std::bit_cast<float>((exponent + 127U) << 23);
  return argument == argument ? result : argument;
}

/// Abramowitz and Stegun, 7.1.26; absolute error 1.5e-7.
inline float host_error_function(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float t = 1.0F / (1.0F + 0.3275911F * magnitude);
  float p = 1.061405429F;
  p = p * t - 1.453152027F;
  p = p * t + 1.421413741F;
  p = p * t - 0.284496736F;
  p = p * t + 0.254829592F;
  const float tail = p * t * host_exponential(-x * x);
  return x < 0 ? tail - 1.0F : 1.0F - tail;
}

KOKKOS_INLINE_FUNCTION float exponential(float x) {
  KOKKOS_IF_ON_DEVICE((return __expf(x);))
  KOKKOS_IF_ON_HOST((return host_exponential(x);))
}
KOKKOS_INLINE_FUNCTION double exponential(double x) { return Kokkos::exp(x); }

/// For GPUs: 2^x in one instruction, 0 where that is not a normal number.
KOKKOS_INLINE_FUNCTION float exponential_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return std::exp2(x);
#endif
}

/// On GPUs within two units in the last place, in a fifth of the instructions of the exact ones; denominators up to
/// 2^126.
KOKKOS_INLINE_FUNCTION float quick_quotient(float numerator, float denominator) {
  KOKKOS_IF_ON_DEVICE((return __fdividef(numerator, denominator);))
  KOKKOS_IF_ON_HOST((return numerator / denominator;))
}
KOKKOS_INLINE_FUNCTION double quick_quotient(double numerator, double denominator) {
  return numerator / denominator;
}
KOKKOS_INLINE_FUNCTION float quick_square_root(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return std::sqrt(x);
#endif
}
KOKKOS_INLINE_FUNCTION double quick_square_root(double x) { return Kokkos::sqrt(x); }

KOKKOS_INLINE_FUNCTION float logistic(float x) {
  KOKKOS_IF_ON_DEVICE((return __fdividef(1.0F, 1.0F + __expf(-x));))
  KOKKOS_IF_ON_HOST((return 1.0F / (1.0F + host_exponential(-x));))
}
KOKKOS_INLINE_FUNCTION double logistic(double x) { return 1 / (1 + Kokkos::exp(-x)); }

KOKKOS_INLINE_FUNCTION float error_function(float x) {
  KOKKOS_IF_ON_DEVICE((return ::erff(x);))
  KOKKOS_IF_ON_HOST((return host_error_function(x);))
}
KOKKOS_INLINE_FUNCTION double error_function(double x) { return Kokkos::erf(x); }

}  // namespace encore::kernels::impl
