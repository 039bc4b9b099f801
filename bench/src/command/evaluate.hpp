// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore eval`: the loss of a loaded model over data, or its distance from a reference file. Returns the exit code.
int evaluate(const EvaluateOptions& options, Console& console);

}  // namespace encore::command
