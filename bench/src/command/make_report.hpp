// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore report`: a page from files that other commands wrote. Returns the exit code.
int make_report(const ReportOptions& options, Console& console);

}  // namespace encore::command
