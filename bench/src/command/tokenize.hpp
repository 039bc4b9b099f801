// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

void add_tokenize(CLI::App& app, TokenizeOptions& options);

/// `encore tokenize`: a text to a token file, or a token file to its text. Returns the exit code.
int tokenize(const TokenizeOptions& options, Console& console);

}  // namespace encore::command
