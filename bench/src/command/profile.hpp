// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore profile`: what each part of a step takes, against what the device could do at best. Returns the exit code.
int profile(const ProfileCommandOptions& options, Console& console);

}  // namespace encore::command
