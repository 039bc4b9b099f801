// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace encore::model {

/// The character at the beginning of `text`: length 0 if that is not the beginning of a valid one.
struct Utf8Character {
  char32_t value = 0;
  std::size_t length = 0;
};
Utf8Character utf8_character(std::string_view text) noexcept;

/// The character that ends `text`, which is valid UTF-8.
Utf8Character last_utf8_character(std::string_view text) noexcept;

/// How many bytes at the beginning of `text` are valid UTF-8 (RFC 3629: no surrogates, nothing above U+10FFFF, the
/// shortest form).
std::size_t valid_utf8_prefix(std::string_view text) noexcept;

void append_utf8(std::string& text, char32_t character);

/// Unicode's property White_Space, which has not changed since Unicode 6.3.
bool is_white_space(char32_t character) noexcept;

}  // namespace encore::model
