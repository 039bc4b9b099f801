// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/trainer.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace encore::model {

/// Everything that decides how a training goes on, and the last gradients, copied to the host.
struct TrainingState {
  struct Array {
    ParameterArray array;
    backend::DataType type;
    std::vector<std::vector<std::byte>>
        slices;  ///< in the order of the layout's boxes, or of its experts' biases
  };
  std::int64_t steps_done = 0;
  std::vector<RandomPosition> positions;
  std::vector<Array> arrays;
};

TrainingState read_state(Trainer& trainer);

/// Names the first thing that is not the same, bit for bit; empty when there is none.
std::string first_difference(const ParameterLayout& layout, const TrainingState& left,
                             const TrainingState& right);

}  // namespace encore::model
