// SPDX-License-Identifier: Apache-2.0
#include "html.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace encore::command {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// Bytes of the well-formed UTF-8 character at the start (RFC 3629, section 4); 0: it is none.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned char second = byte(1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second > 0x9F;
  const bool beyond = lead == 0xF4 && second > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

bool is_control(char character) {
  const auto byte = static_cast<unsigned char>(character);
  return (byte < 0x20 && character != '\n' && character != '\t') || byte == 0x7F;
}

std::string_view entity_of(char character) {
  switch (character) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return {};
  }
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::string_view entity = entity_of(text.front());
    if (length == 0 || is_control(text.front()))
      result += replacement;
    else if (!entity.empty())
      result += entity;
    else
      result += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
  return result;
}

std::string script_json(const nlohmann::ordered_json& object) {
  std::string result;
  for (const char character : object.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) {
    if (character == '<' || character == '>' || character == '&')
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(character));
    else
      result += character;
  }
  return result;
}

std::string data_element(double value, std::string_view shown, std::string_view name) {
  const std::string named = name.empty() ? "" : fmt::format(" data-name=\"{}\"", escaped(name));
  return fmt::format("<data value=\"{}\"{}>{}</data>", value, named, escaped(shown));
}

std::string number_text(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (size == 0) return "0";
  if (size < 1e-3 || size >= 1e6) return fmt::format("{:.3g}", value);
  const int digits = size < 0.1 ? 4 : size < 1 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0;
  return fmt::format("{:.{}f}", value, digits);
}

std::string grouped_text(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  const std::size_t first = digits.starts_with('-') ? 1 : 0;
  for (std::size_t place = digits.size(); place > first + 3;) digits.insert(place -= 3, ",");
  return digits;
}

}  // namespace encore::command
