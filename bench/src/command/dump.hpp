// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore dump`: the step's program with its kernels, memory and runs, without running it. With --diff, what is not
/// the same in two such files: returns 0 when they are equal and 1 when they differ, as diff does.
int dump(const DumpOptions& options, Console& console);

}  // namespace encore::command
