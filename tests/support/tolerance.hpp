// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

namespace encore::tests {

/// How far a result may lie from its float64 reference: the norm of the difference over the norm of the
/// reference, and the largest difference over the largest reference value.
struct Tolerance {
  double norm;
  double largest;
};

/// A rounding of the type is 2^-53, 2^-24 or 2^-8: a few hundred, a few tens (the fast functions of a GPU are
/// no better) and one or two of them.
template <class T>
constexpr Tolerance tolerance() {
  if constexpr (std::is_same_v<T, double>)
    return {1e-13, 1e-12};
  else if constexpr (std::is_same_v<T, float>)
    return {4e-6, 1e-5};
  else
    return {4e-3, 6e-3};
}

/// The coarser of the two types decides.
template <class T, class U>
constexpr Tolerance tolerance() {
  const Tolerance first = tolerance<T>(), second = tolerance<U>();
  return {std::max(first.norm, second.norm), std::max(first.largest, second.largest)};
}

inline void check_close(const std::vector<double>& result, const std::vector<double>& reference,
                        Tolerance allowed) {
  REQUIRE(result.size() == reference.size());
  double squares = 0, difference_squares = 0, largest = 0, largest_difference = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double difference = std::abs(result[i] - reference[i]);
    squares += reference[i] * reference[i];
    difference_squares += difference * difference;
    largest = std::max(largest, std::abs(reference[i]));
    // Written so that a NaN difference is kept.
    largest_difference = largest_difference >= difference ? largest_difference : difference;
  }
  // A reference of nothing but zeros must be met exactly.
  CHECK(std::sqrt(difference_squares) <= allowed.norm * std::sqrt(squares));
  CHECK(largest_difference <= allowed.largest * largest);
}

}  // namespace encore::tests
