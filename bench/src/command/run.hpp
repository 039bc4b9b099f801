// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace encore::command {

/// The whole command, given what follows its name. Returns the exit code; every failure is one line on standard
/// error, `encore: ` and a sentence.
int run(const std::vector<std::string>& arguments) noexcept;

}  // namespace encore::command
