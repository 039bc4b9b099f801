// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

/// A safetensors file put together by hand, so that it can be wrong in any way.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes += header;
  bytes += data;
  return bytes;
}
