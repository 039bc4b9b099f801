// SPDX-License-Identifier: Apache-2.0
#include "byte_alphabet.hpp"

#include <array>

#include "utf8.hpp"

namespace encore::model {
namespace {

constexpr bool prints(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr std::array<char32_t, 256> letters = [] {
  std::array<char32_t, 256> result{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) result[byte] = prints(byte) ? byte : next++;
  return result;
}();

constexpr char32_t last_letter = 0x143;
constexpr std::array<int, last_letter + 1> bytes = [] {
  std::array<int, last_letter + 1> result{};
  for (int& byte : result) byte = -1;
  for (int byte = 0; byte < 256; ++byte) result[letters[static_cast<std::size_t>(byte)]] = byte;
  return result;
}();

}  // namespace

char32_t letter_of_byte(unsigned char byte) noexcept { return letters[byte]; }

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string result;
  while (!spelling.empty()) {
    const Utf8Character character = utf8_character(spelling);
    if (character.length == 0 || character.value > last_letter || bytes[character.value] < 0) return {};
    result += static_cast<char>(static_cast<unsigned char>(bytes[character.value]));
    spelling.remove_prefix(character.length);
  }
  return result;
}

}  // namespace encore::model
