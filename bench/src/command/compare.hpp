// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore ab`: whether graphs are worth keeping for this configuration: matched eager and replayed steps from the
/// same states, a verdict with its interval, memory, loss difference and break-even step. Returns the exit code;
/// throws ValidationError when the numbers differ, after having printed everything.
int compare(const CompareOptions& options, Console& console);

/// Steps of one kind that run behind one another, of so many in all.
std::int64_t block_steps(std::int64_t steps);

}  // namespace encore::command
