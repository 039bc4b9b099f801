// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore train`. Returns the exit code: 0, or 128 + the signal's number when the training was interrupted (and
/// saved). Throws ValidationError when the loss is not a number any more, or eager and replayed steps differ.
int train(const TrainOptions& options, Console& console);

}  // namespace encore::command
