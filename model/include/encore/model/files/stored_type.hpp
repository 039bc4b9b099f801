// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace encore::model {

/// The element types of a safetensors file, as its format names them.
enum class StoredType {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64
};

/// The bytes of one element.
std::size_t size_of(StoredType type) noexcept;

/// The format's name of the type: BOOL, U8, ..., BF16, F32, F64.
std::string_view name_of(StoredType type) noexcept;

/// The type of that name; none for a name that the format or this version does not know.
std::optional<StoredType> stored_type(std::string_view name) noexcept;

}  // namespace encore::model
