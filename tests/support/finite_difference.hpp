// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tolerance.hpp"

#include <functional>
#include <vector>

namespace encore::tests {

/// Checks a gradient in double against central differences of `loss`.
inline void check_gradient(const std::function<double(const std::vector<double>&)>& loss,
                           const std::vector<double>& at, const std::vector<double>& gradient) {
  constexpr double step = 1e-5;
  std::vector<double> differences(at.size()), point = at;
  for (std::size_t i = 0; i < at.size(); ++i) {
    point[i] = at[i] + step;
    const double above = loss(point);
    point[i] = at[i] - step;
    const double below = loss(point);
    point[i] = at[i];
    differences[i] = (above - below) / (2 * step);
  }
  check_close(gradient, differences, {1e-6, 1e-6});
}

/// The sum of products: with random `weights`, a scalar loss whose gradient reaches every entry of `values`.
inline double weighted_sum(const std::vector<double>& values, const std::vector<double>& weights) {
  double total = 0;
  for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * weights[i];
  return total;
}

}  // namespace encore::tests
