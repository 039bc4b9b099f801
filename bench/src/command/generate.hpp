// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// Prints what a model writes after a prompt. Returns the exit code.
int generate(const GenerateOptions& options, Console& console);

}  // namespace encore::command
