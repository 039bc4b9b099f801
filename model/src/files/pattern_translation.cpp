// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "text.hpp"
#include "text_pattern.hpp"
#include "utf8.hpp"

// Oniguruma (Ruby's syntax, Unicode) and PCRE2 agree on the structure of an expression and on the order of its
// alternatives. They differ in what \s, \w, \v, ^, $, {n}+ and nested classes mean: those are spelled out here, or
// refused.

namespace encore::model {
namespace {

// White_Space and what is not, for use within brackets.
constexpr std::string_view spaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view no_spaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
// Unicode TS 18, annex C: word. Outside of brackets Oniguruma adds the superscripts and fractions of Latin-1.
constexpr std::string_view word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view latin_word = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

constexpr std::array<std::string_view, 39> properties = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",  "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc",  "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co", "Cs", "Any", "Alphabetic"};

bool is_digit(char character) { return character >= '0' && character <= '9'; }
bool is_letter(char character) {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z');
}
bool is_ascii(char character) { return static_cast<unsigned char>(character) < 0x80; }

class Translation {
 public:
  Translation(std::string_view expression, const std::string& where)
      : whole_(expression), rest_(expression), where_(where) {}

  std::string run() {
    while (!rest_.empty()) element();
    return std::move(result_);
  }

 private:
  /// One character, or a set in the syntax that stands within brackets.
  struct Item {
    std::optional<char32_t> character;
    std::string set;
  };

  [[noreturn]] void refuse(std::string_view construct) const {
    throw ConfigurationError(fmt::format("{} uses {} in {}, which this version does not read", where_,
                                         in_quotes(construct), in_quotes(whole_)));
  }

  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  char32_t take_character() {
    const Utf8Character character = utf8_character(rest_);
    if (character.length == 0) refuse(rest_.substr(0, 1));
    rest_.remove_prefix(character.length);
    return character.value;
  }

  static std::string spelled(char32_t character) {
    return fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(character));
  }

  void element() {
    switch (rest_.front()) {
      case '(': return group();
      case '[': return brackets();
      case '{': return interval();
      case '\\': {
        const Item item = escape();
        result_ += item.character ? spelled(*item.character) : item.set.empty() ? "" : "[" + item.set + "]";
        return;
      }
      case ')':
      case '|':
      case '*':
      case '+':
      case '?': result_ += rest_.front(); break;
      case '.': result_ += R"([^\n])"; break;
      case '^': result_ += R"((?:\A|(?<=\n)(?!\z)))"; break;
      case '$': result_ += R"((?:(?=\n)|(?<!\n)\z))"; break;
      default: result_ += spelled(take_character()); return;
    }
    rest_.remove_prefix(1);
  }

  void group() {
    take("(");
    if (!rest_.starts_with('?')) {
      result_ += "(?:";
      return;
    }
    for (const std::string_view kind : {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:", "?-i:"})
      if (take(kind)) {
        result_ += fmt::format("({}", kind);
        return;
      }
    refuse(fmt::format("({}", rest_.substr(0, 2)));
  }

  void interval() {
    const std::string_view at = rest_;
    take("{");
    const std::string_view from = digits();
    const bool is_range = take(",");
    const std::string_view to = is_range ? digits() : std::string_view();
    if (!take("}") || (from.empty() && to.empty())) {
      rest_ = at.substr(1);
      result_ += R"(\{)";
      return;
    }
    // {n}+ repeats the repetition in Ruby and forbids backtracking in PCRE2; {n}? makes it optional in Ruby.
    if (rest_.starts_with('+') || (!is_range && rest_.starts_with('?')))
      refuse(at.substr(0, at.size() - rest_.size() + 1));
    const std::string_view least = from.empty() ? "0" : from;
    result_ += is_range ? fmt::format("{{{},{}}}", least, to) : fmt::format("{{{}}}", least);
  }

  std::string_view digits() {
    std::size_t length = 0;
    while (length < rest_.size() && is_digit(rest_[length])) ++length;
    const std::string_view result = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return result;
  }

  /// After a backslash. An empty set outside of brackets stands for what was written to the result already.
  Item escape() {
    take("\\");
    if (rest_.empty()) refuse("\\");
    if (!is_ascii(rest_.front())) return {take_character(), {}};
    const char kind = rest_.front();
    if (!is_letter(kind) && !is_digit(kind)) return {take_character(), {}};
    rest_.remove_prefix(1);
    switch (kind) {
      case 's': return {{}, std::string(spaces)};
      case 'S': return {{}, std::string(no_spaces)};
      case 'd': return {{}, R"(\p{Nd})"};
      case 'D': return {{}, R"(\P{Nd})"};
      case 'w': return {{}, fmt::format("{}{}", word, in_brackets_ ? "" : latin_word)};
      case 'n': return {U'\n', {}};
      case 'r': return {U'\r', {}};
      case 't': return {U'\t', {}};
      case 'f': return {U'\f', {}};
      case 'v': return {U'\v', {}};
      case 'a': return {U'\a', {}};
      case 'e': return {U'\x1b', {}};
      case 'p':
      case 'P': return {{}, property(kind)};
      case 'x': return {take("{") ? hexadecimal(1, 6, true) : byte(), {}};
      case 'u': return {hexadecimal(4, 4, false), {}};
      case 'A':
      case 'z':
        if (in_brackets_) break;
        result_ += fmt::format("\\{}", kind);
        return {};
      case 'W':
        if (in_brackets_) break;
        result_ += fmt::format("[^{}{}]", word, latin_word);
        return {};
      default: break;
    }
    refuse(fmt::format("\\{}", kind));
  }

  std::string property(char kind) {
    const std::string_view at = rest_;
    if (!take("{")) refuse(fmt::format("\\{}", kind));
    const bool negated = take("^") != (kind == 'P');
    const std::size_t end = rest_.find('}');
    const std::string_view name = rest_.substr(0, end);
    const bool is_name = end != std::string_view::npos && !name.empty() &&
                         std::ranges::all_of(name, [](char c) { return is_letter(c) || c == '_'; });
    if (!is_name) refuse(fmt::format("\\{}{}", kind, at.substr(0, 12)));
    rest_.remove_prefix(end + 1);
    // \p{Han} is the script in Oniguruma, and its extensions in PCRE2 from 10.40 on.
    const bool is_script = std::ranges::find(properties, name) == properties.end();
    return fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', is_script ? "sc:" : "", name);
  }

  char32_t byte() {
    const char32_t value = hexadecimal(1, 2, false);
    if (value >= 0x80) refuse(fmt::format("\\x{:x}", static_cast<std::uint32_t>(value)));
    return value;
  }

  char32_t hexadecimal(std::size_t least, std::size_t most, bool closed) {
    std::size_t length = 0;
    char32_t value = 0;
    while (length < most && length < rest_.size()) {
      const char digit = rest_[length];
      const bool is_hexadecimal =
          is_digit(digit) || (digit >= 'a' && digit <= 'f') || (digit >= 'A' && digit <= 'F');
      if (!is_hexadecimal) break;
      value = value * 16 + static_cast<char32_t>(is_digit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10);
      ++length;
    }
    rest_.remove_prefix(length);
    const bool is_character = value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    if (length < least || !is_character || (closed && !take("}"))) refuse("\\x");
    return value;
  }

  void brackets() {
    take("[");
    in_brackets_ = true;
    result_ += take("^") ? "[^" : "[";
    if (rest_.starts_with(']')) refuse("[]");
    while (!take("]")) {
      if (rest_.empty()) refuse("[");
      const Item item = bracket_item();
      if (!item.character) {
        result_ += item.set;
        continue;
      }
      result_ += spelled(*item.character);
      if (!rest_.starts_with('-') || rest_.starts_with("-]")) continue;
      take("-");
      if (rest_.empty()) refuse("[");
      const Item last = bracket_item();
      if (!last.character || *last.character < *item.character) refuse("-");
      result_ += "-" + spelled(*last.character);
    }
    result_ += "]";
    in_brackets_ = false;
  }

  Item bracket_item() {
    if (rest_.starts_with('[') || rest_.starts_with("&&")) refuse(rest_.substr(0, 2));
    if (rest_.starts_with('\\')) return escape();
    return {take_character(), {}};
  }

  std::string_view whole_, rest_;
  const std::string& where_;
  std::string result_;
  bool in_brackets_ = false;
};

}  // namespace

std::string translated_pattern(std::string_view expression, const std::string& where) {
  return Translation(expression, where).run();
}

}  // namespace encore::model
