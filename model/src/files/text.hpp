// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace encore::model {

/// The text made fit for one line of an error: bytes that do not print are written as \xNN, and more than 120
/// bytes are cut. Whatever comes from a file or a person goes through this.
std::string printable(std::string_view text);

/// The same between single quotes.
std::string in_quotes(std::string_view text);

/// A path between single quotes, in full: cut, it would not name the file.
std::string path_in_quotes(const std::filesystem::path& path);

/// What the system calls the error number, such as `No space left on device`.
std::string system_error_text(int error_number);

}  // namespace encore::model
