// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <cstdint>

namespace encore::command {

/// Of the step that follows `steps_done` steps.
double learning_rate(const model::TrainConfiguration& train, std::int64_t steps_done);

}  // namespace encore::command
