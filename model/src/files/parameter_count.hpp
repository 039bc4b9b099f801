// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

namespace encore::model {

/// `parameter_count` in floating point: right to some digits where the number is beyond 64 bits.
double estimated_parameter_count(const ModelConfiguration& model);

}  // namespace encore::model
