// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "random_values.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace encore::tests {

/// Cross-entropy of a whole vocabulary, and its gradient.
struct CrossEntropyReference {
  std::vector<double> row_loss, gradient;
  double loss = 0, count = 0;

  CrossEntropyReference(const std::vector<double>& logits, const std::vector<std::int32_t>& labels,
                        std::int64_t vocabulary)
      : row_loss(labels.size()), gradient(logits.size()) {
    for (const std::int32_t label : labels) count += label >= 0;
    for (std::size_t t = 0; t < labels.size(); ++t) {
      if (labels[t] < 0) continue;
      const double* row = logits.data() + t * vocabulary;
      const double largest = *std::max_element(row, row + vocabulary);
      double sum = 0;
      for (std::int64_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - largest);
      row_loss[t] = largest + std::log(sum) - row[labels[t]];
      loss += row_loss[t] / count;
      for (std::int64_t v = 0; v < vocabulary; ++v)
        gradient[t * vocabulary + v] = (std::exp(row[v] - largest) / sum - (v == labels[t] ? 1 : 0)) / count;
    }
  }
};

/// Random labels, every fourth ignored.
inline std::vector<std::int32_t> some_labels(std::int64_t tokens, std::int64_t vocabulary) {
  std::vector<std::int32_t> labels = integer_values(tokens, 0, static_cast<std::int32_t>(vocabulary - 1), 3);
  for (std::int64_t t = 3; t < tokens; t += 4) labels[t] = t % 8 == 3 ? -100 : -1;
  return labels;
}

}  // namespace encore::tests
