// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/parameter_layout.hpp>
#include <encore/model/files/rank_layout.hpp>

#include <cstdint>
#include <vector>

namespace encore::model {

/// A stretch of the array of all parameters that is updated at once. Where the optimizer's state is dealt out, each of
/// the ranks that share the stretch updates an equal share of it.
struct UpdatePart {
  std::int64_t begin, end;     ///< elements
  Stretch own;                 ///< of these, what this rank updates
  std::int64_t state_begin;    ///< where the optimizer's state of `own` begins in this rank's arrays of it
  std::int64_t decayed;        ///< of `own`, the first ones with weight decay
  RankGroup group;             ///< whose ranks have the same parameters here
  std::int64_t first_partial;  ///< its sums for the gradient's norm among those of all parts
  std::int64_t end_partial;
};

/// All parameters at once. Where the optimizer's state is not dealt out.
UpdatePart whole_update(const ParameterLayout& layout);

/// All parameters, in the order in which a backward pass completes their gradients: of the head, of the layers from the
/// last to the first, of the embedding. Small neighbours are one part.
std::vector<UpdatePart> update_parts(const ParameterLayout& layout, std::int64_t layers);

/// The part that has an element. Throws InternalError if there is none.
const UpdatePart& part_with(const std::vector<UpdatePart>& parts, std::int64_t element);

/// Whether ranks keep parts of the optimizer's state.
inline bool shards_optimizer(const ParameterLayout& layout) { return layout.shard().optimizer_ranks > 1; }

/// Elements of this rank's arrays of the optimizer's state.
std::int64_t optimizer_elements(const ParameterLayout& layout, std::int64_t layers);

/// The stretches of the gradients whose squares this rank adds to the norm, so that over all ranks every element of the
/// whole model counts once.
std::vector<Stretch> norm_stretches(const ParameterLayout& layout, std::int64_t layers);

}  // namespace encore::model
