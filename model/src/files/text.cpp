// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <system_error>

namespace encore::model {

namespace {

void append_printable(std::string& result, std::string_view text) {
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    // Bytes from 0x80 on are kept: they are UTF-8 in any path or name that a person can read.
    if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(result), "\\x{:02x}", byte);
    } else {
      result += character;
    }
  }
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 120;
  const auto within_character = [text](std::size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
  };
  std::size_t length = std::min(text.size(), longest);
  while (0 < length && length < text.size() && within_character(length)) --length;
  std::string result;
  append_printable(result, text.substr(0, length));
  if (length < text.size()) result += "...";
  return result;
}

std::string in_quotes(std::string_view text) { return "'" + printable(text) + "'"; }

std::string path_in_quotes(const std::filesystem::path& path) {
  std::string result = "'";
  append_printable(result, path.native());
  return result + "'";
}

std::string system_error_text(int error_number) { return std::generic_category().message(error_number); }

}  // namespace encore::model
