// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/parameter_layout.hpp>

#include <vector>

namespace encore::model {

/// A rank's share of a section of a partition.
Stretch share_in(const ModelShard& shard, const Partition& partition, std::int64_t section);

/// Appends what the rank has of the tensors of one form of a parameter.
void append_boxes(const ModelShard& shard, const Parameter& parameter,
                  const std::vector<ParameterSlice>& form, std::vector<ParameterBox>& boxes);

}  // namespace encore::model
