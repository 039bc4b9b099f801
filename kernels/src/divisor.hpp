// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <bit>
#include <cstdint>

namespace encore::kernels::impl {

/// Divides numbers that are not negative by the same positive number: those below 2^31 by a product and a shift.
/// Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994, figure 4.1.
class Divisor {
 public:
  explicit Divisor(std::int64_t divisor) : divisor_(divisor) {
    constexpr std::int64_t limit = std::int64_t(1) << 31;
    if (divisor <= 0 || divisor >= limit) return;
    const auto d = static_cast<std::uint64_t>(divisor);
    shift_ = static_cast<int>(std::bit_width(d - 1));
    multiplier_ = static_cast<std::uint32_t>((((std::uint64_t(1) << shift_) - d) << 32) / d + 1);
    limit_ = limit;
  }

  KOKKOS_FUNCTION std::int64_t quotient(std::int64_t dividend) const {
    if (dividend >= limit_) return dividend / divisor_;
    const auto n = static_cast<std::uint32_t>(dividend);
    const auto high = static_cast<std::uint32_t>((static_cast<std::uint64_t>(n) * multiplier_) >> 32);
    return (high + n) >> shift_;
  }
  KOKKOS_FUNCTION std::int64_t divisor() const { return divisor_; }

 private:
  std::int64_t divisor_;
  std::int64_t limit_ = 0;  ///< of the dividends that the product serves
  std::uint32_t multiplier_ = 0;
  int shift_ = 0;
};

}  // namespace encore::kernels::impl
