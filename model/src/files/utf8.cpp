// SPDX-License-Identifier: Apache-2.0
#include "utf8.hpp"

#include <encore/model/files/tokenizer.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace encore::model {
namespace {

unsigned byte_at(std::string_view text, std::size_t place) { return static_cast<unsigned char>(text[place]); }
bool continues(unsigned byte) { return (byte & 0xc0U) == 0x80U; }

/// The length that a first byte announces; 0 if it can begin no character.
std::size_t announced_length(unsigned first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  if (first >= 0xf0 && first <= 0xf4) return 4;
  return 0;
}

/// The second byte excludes what is too long a form (E0, F0), surrogates (ED) and what is above U+10FFFF (F4).
bool may_follow(unsigned first, unsigned second) {
  switch (first) {
    case 0xe0: return second >= 0xa0 && second <= 0xbf;
    case 0xed: return second >= 0x80 && second <= 0x9f;
    case 0xf0: return second >= 0x90 && second <= 0xbf;
    case 0xf4: return second >= 0x80 && second <= 0x8f;
    default: return continues(second);
  }
}

/// How many bytes at the beginning of `text` could be the beginning of one character.
std::size_t begun_length(std::string_view text) {
  const std::size_t whole = announced_length(byte_at(text, 0));
  std::size_t length = whole == 0 ? 0 : 1;
  while (length < whole && length < text.size()) {
    const unsigned byte = byte_at(text, length);
    if (length == 1 ? !may_follow(byte_at(text, 0), byte) : !continues(byte)) break;
    ++length;
  }
  return length;
}

}  // namespace

Utf8Character utf8_character(std::string_view text) noexcept {
  if (text.empty()) return {};
  const unsigned first = byte_at(text, 0);
  const std::size_t length = announced_length(first);
  if (length == 0 || begun_length(text) < length) return {};
  if (length == 1) return {first, 1};
  char32_t value = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) value = (value << 6) | (byte_at(text, i) & 0x3fU);
  return {value, length};
}

Utf8Character last_utf8_character(std::string_view text) noexcept {
  std::size_t begin = text.size();
  while (begin > 0 && text.size() - begin < 4) {
    --begin;
    if (!continues(byte_at(text, begin))) break;
  }
  return utf8_character(text.substr(begin));
}

std::size_t valid_utf8_prefix(std::string_view text) noexcept {
  std::size_t place = 0;
  while (place < text.size()) {
    std::uint64_t eight = 0;
    while (place + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + place, sizeof(eight));
      if ((eight & 0x8080808080808080ULL) != 0) break;
      place += sizeof(eight);
    }
    if (place == text.size()) break;
    const std::size_t length = utf8_character(text.substr(place)).length;
    if (length == 0) break;
    place += length;
  }
  return place;
}

void append_utf8(std::string& text, char32_t character) {
  const auto push = [&text](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (character < 0x80) {
    push(character);
  } else if (character < 0x800) {
    push(0xc0 | (character >> 6));
    push(0x80 | (character & 0x3f));
  } else if (character < 0x10000) {
    push(0xe0 | (character >> 12));
    push(0x80 | ((character >> 6) & 0x3f));
    push(0x80 | (character & 0x3f));
  } else {
    push(0xf0 | (character >> 18));
    push(0x80 | ((character >> 12) & 0x3f));
    push(0x80 | ((character >> 6) & 0x3f));
    push(0x80 | (character & 0x3f));
  }
}

bool is_white_space(char32_t character) noexcept {
  return (character >= 0x09 && character <= 0x0d) || character == 0x20 || character == 0x85 ||
         character == 0xa0 || character == 0x1680 || (character >= 0x2000 && character <= 0x200a) ||
         character == 0x2028 || character == 0x2029 || character == 0x202f || character == 0x205f ||
         character == 0x3000;
}

std::size_t complete_utf8(std::string_view bytes) noexcept {
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const std::string_view tail = bytes.substr(bytes.size() - back);
    const std::size_t whole = announced_length(byte_at(tail, 0));
    if (whole > back && begun_length(tail) == back) return bytes.size() - back;
    if (!continues(byte_at(tail, 0))) break;
  }
  return bytes.size();
}

std::string printable_utf8(std::string_view bytes) {
  std::string result;
  result.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t valid = valid_utf8_prefix(bytes);
    result += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    // As the Unicode standard advises (3.9, U+FFFD substitution of maximal subparts).
    append_utf8(result, 0xfffd);
    bytes.remove_prefix(std::max<std::size_t>(1, begun_length(bytes)));
  }
  return result;
}

}  // namespace encore::model
