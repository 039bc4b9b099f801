// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/trainer.hpp>

#include <nlohmann/json_fwd.hpp>

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore profile`: what each part of a step takes, against what the device could do at best. Returns the exit code.
int profile(const ProfileCommandOptions& options, Console& console);

/// What `encore profile --json` prints.
nlohmann::ordered_json profile_document(const graph::StepProfile& profile, ProfileGrouping grouping,
                                        const model::Trainer& trainer);

}  // namespace encore::command
