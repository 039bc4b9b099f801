// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/rope.hpp>

#include "shapes.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace encore::kernels {

RopeFrequencies yarn_frequencies(double theta, std::int64_t head_dim, const YarnOptions& options) {
  impl::require_shape(
      theta > 1 && head_dim > 0 && options.factor >= 1 && options.original_positions > 0 &&
          options.beta_fast >= options.beta_slow && options.beta_slow > 0,
      "yarn_frequencies: theta must be above 1, the factor at least 1, beta_slow above 0 and at "
      "most beta_fast, and there must be original positions");
  const auto dimension = static_cast<double>(head_dim);
  // The pair, as a real number, that turns `turns` times within the original positions.
  const auto pair_of = [&](double turns) {
    return dimension * std::log(options.original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = pair_of(options.beta_fast), high = pair_of(options.beta_slow);
  if (options.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  RopeFrequencies frequencies(theta);
  frequencies.factor = options.factor;
  frequencies.low = std::max(low, 0.0);
  frequencies.high = std::min(high, dimension - 1);
  if (frequencies.low == frequencies.high) frequencies.high += 0.001;
  frequencies.scale =
      options.attention_factor > 0 ? options.attention_factor : 0.1 * std::log(options.factor) + 1;
  return frequencies;
}

}  // namespace encore::kernels
