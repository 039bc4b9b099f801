// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore eval --golden`. Throws ValidationError when an error is larger than the tolerance asked for.
int evaluate_reference(const EvaluateOptions& options, Console& console);

}  // namespace encore::command
