// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/hexadecimal.hpp>

#include <charconv>

namespace encore::backend {

std::string to_hexadecimal(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    text += digits[value / 16];
    text += digits[value % 16];
  }
  return text;
}

std::vector<std::byte> from_hexadecimal(std::string_view digits) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const std::string_view pair = digits.substr(i, 2);
    unsigned value = 0;
    const auto [end, status] = std::from_chars(pair.data(), pair.data() + pair.size(), value, 16);
    if (pair.size() != 2 || status != std::errc() || end != pair.data() + 2)
      throw ConfigurationError("'" + std::string(pair) + "' at place " + std::to_string(i) +
                               " is no pair of hexadecimal digits");
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

}  // namespace encore::backend
