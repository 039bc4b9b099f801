// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <fmt/format.h>

#include <iterator>
#include <system_error>

namespace encore::model {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 120;
  std::string result = "'";
  for (const char character : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(character);
    // Bytes from 0x80 on are kept: they are UTF-8 in any path or name that a person can read.
    if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(result), "\\x{:02x}", byte);
    } else {
      result += character;
    }
  }
  if (text.size() > longest) result += "...";
  result += '\'';
  return result;
}

std::string path_in_quotes(const std::filesystem::path& path) {
  // A path is shown whole: cut, it would not name the file.
  const std::string& name = path.native();
  std::string result = "'";
  for (std::size_t begin = 0; begin < name.size(); begin += 64) {
    const std::string part = in_quotes(std::string_view(name).substr(begin, 64));
    result.append(part, 1, part.size() - 2);
  }
  result += '\'';
  return result;
}

std::string system_error_text(int error_number) { return std::generic_category().message(error_number); }

}  // namespace encore::model
