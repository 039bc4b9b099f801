// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace encore::backend {

/// Two digits a byte.
std::string to_hexadecimal(std::span<const std::byte> bytes);
/// Throws ConfigurationError for anything but pairs of digits.
std::vector<std::byte> from_hexadecimal(std::string_view digits);

}  // namespace encore::backend
