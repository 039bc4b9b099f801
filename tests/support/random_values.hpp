// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace encore::tests {

/// Normal numbers that T represents exactly, so that a float64 reference sees the same inputs.
template <class T>
std::vector<double> normal_values(std::int64_t count, unsigned seed, double mean = 0, double deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<double>(static_cast<T>(normal(generator)));
  return values;
}

inline std::vector<std::int32_t> integer_values(std::int64_t count, std::int32_t least, std::int32_t most,
                                                unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<std::int32_t> uniform(least, most);
  std::vector<std::int32_t> values(count);
  for (std::int32_t& value : values) value = uniform(generator);
  return values;
}

}  // namespace encore::tests
