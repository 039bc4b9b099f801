// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore info`: version, build, devices, presets; with a configuration, all its keys and the memory it will need.
/// Works where the build's GPU is missing. Returns the exit code.
int print_information(const InformationOptions& options, Console& console);

}  // namespace encore::command
