// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore plan`: what would be captured and what not, and why; runs, kernels and memory of each policy; buckets for
/// a file of lengths. Runs nothing. Returns the exit code; a configuration that is refused is thrown, and with
/// --json printed before.
int print_plan(const PlanOptions& options, Console& console);

}  // namespace encore::command
