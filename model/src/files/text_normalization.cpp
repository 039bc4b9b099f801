// SPDX-License-Identifier: Apache-2.0
#include "text_normalization.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#if ENCORE_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

#include <algorithm>
#include <array>
#include <vector>

#include "utf8.hpp"

namespace encore::model {

#if ENCORE_HAVE_UTF8PROC

namespace {

bool composes(NormalizationForm form) {
  return form == NormalizationForm::nfc || form == NormalizationForm::nfkc;
}
bool is_compatible(NormalizationForm form) {
  return form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
}

/// Where the first character stands that normalization could change; all before it are alone with themselves.
std::size_t unchanged_prefix(std::string_view text, NormalizationForm form) {
  // Below U+0300 nothing composes with what is before it; below U+0080 nothing decomposes.
  const unsigned char first_changing = form == NormalizationForm::nfc ? 0xcc : 0x80;
  const auto changing = std::ranges::find_if(
      text, [first_changing](char byte) { return static_cast<unsigned char>(byte) >= first_changing; });
  if (changing == text.end()) return text.size();
  const auto place = static_cast<std::size_t>(changing - text.begin());
  // The character before it may compose with it.
  if (place == 0) return 0;
  std::size_t begin = place - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return begin;
}

/// The length of the stretch at the beginning of `text` that is normalized in one piece: up to the next character of
/// ASCII, none of which composes with what is before it.
std::size_t stretch(std::string_view text) {
  for (std::size_t i = 1; i < text.size(); ++i)
    if (static_cast<unsigned char>(text[i]) < 0x80) return i;
  return text.size();
}

/// The canonical ordering of decomposed characters (The Unicode Standard, D109). utf8proc's own way to do it takes
/// quadratic time on a long run of marks.
void sort_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto combining = [](utf8proc_int32_t character) {
    return utf8proc_get_property(character)->combining_class;
  };
  for (auto begin = characters.begin(); begin != characters.end();) {
    if (combining(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, characters.end(), [&](auto character) { return combining(character) == 0; });
    std::stable_sort(begin, end, [&](auto left, auto right) { return combining(left) < combining(right); });
    begin = end;
  }
}

void append_normalized(std::string& result, std::string_view text, NormalizationForm form) {
  int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  if (is_compatible(form)) options |= UTF8PROC_COMPAT;
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  std::array<utf8proc_int32_t, 32> parts{};
  while (!text.empty()) {
    const Utf8Character character = utf8_character(text);
    text.remove_prefix(std::max<std::size_t>(1, character.length));
    int last_class = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character.value), parts.data(),
                                std::ssize(parts), static_cast<utf8proc_option_t>(options), &last_class);
    if (count < 0 || count > std::ssize(parts)) throw InternalError("utf8proc did not decompose a character");
    characters.insert(characters.end(), parts.begin(), parts.begin() + count);
  }
  sort_marks(characters);
  auto length = std::ssize(characters);
  if (composes(form)) {
    length = utf8proc_normalize_utf32(characters.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (length < 0) throw InternalError("utf8proc did not compose a text");
  }
  for (std::ptrdiff_t i = 0; i < length; ++i)
    append_utf8(result, static_cast<char32_t>(characters[static_cast<std::size_t>(i)]));
}

}  // namespace

void require_normalization(const std::string&) {}

std::string normalized_text(std::string_view text, NormalizationForm form) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t unchanged = unchanged_prefix(text, form);
    result += text.substr(0, unchanged);
    text.remove_prefix(unchanged);
    if (text.empty()) break;
    const std::size_t length = stretch(text);
    append_normalized(result, text.substr(0, length), form);
    text.remove_prefix(length);
  }
  return result;
}

#else

void require_normalization(const std::string& where) {
  throw ConfigurationError(
      fmt::format("{} needs utf8proc, which this build does not have: build with ENCORE_ENABLE_UTF8PROC=ON "
                  "where utf8proc is "
                  "installed",
                  where));
}

std::string normalized_text(std::string_view text, NormalizationForm) { return std::string(text); }

#endif

}  // namespace encore::model
