// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "report.hpp"

namespace encore::command {

/// A report as one HTML document that needs nothing else: no network, no file beside it, and no script for what it says.
std::string page_of(const Report& report);

/// Writes it beside and renames. Throws OutputFileError.
void write_page(const std::filesystem::path& path, const Report& report);

}  // namespace encore::command
