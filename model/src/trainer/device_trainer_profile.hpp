// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"

#include <encore/graph/profile.hpp>

#include <limits>

// What the segments of a step take, and what they cannot take less than.

namespace encore::model {

template <class Space, class T, class G>
graph::StepProfile DeviceTrainer<Space, T, G>::profile(double learning_rate,
                                                       const graph::ProfileOptions& options) {
  scalars_.set("learning_rate", learning_rate);
  scalars_.set("step", static_cast<double>(steps_done_ + 1));
  scalars_.upload(device_.stream());
  graph::ProfileOptions of_ranks = options;
  if (layout_.shard().layout.ranks() > 1) {
    // Every rank must run each segment as often as the others, whatever its clock says.
    of_ranks.most_repeats = 1;
    of_ranks.most_milliseconds = std::numeric_limits<double>::infinity();
  }
  return graph::profile<Space>(device_, current_->step.program, current_->executor->bindings(), of_ranks);
}

}  // namespace encore::model
