// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/parameter_layout.hpp>

#include <cstdint>
#include <vector>

namespace encore::model {

/// A stretch of the array of all parameters that is updated at once.
struct UpdatePart {
  std::int64_t begin, end;                  ///< elements
  std::int64_t decayed;                     ///< of these, the first ones with weight decay
  std::int64_t first_partial, end_partial;  ///< its sums for the gradient's norm among those of all parts
};

UpdatePart whole_update(const ParameterLayout& layout);

/// All parameters, in the order in which a backward pass completes their gradients: of the head, of the layers from the
/// last to the first, of the embedding. Small neighbours are one part.
std::vector<UpdatePart> update_parts(const ParameterLayout& layout, std::int64_t layers);

}  // namespace encore::model
