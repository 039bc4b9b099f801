// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "options.hpp"

namespace encore::command {

/// Understands what follows the command's name. Throws UsageError.
Command parse(const std::vector<std::string>& arguments);

}  // namespace encore::command
