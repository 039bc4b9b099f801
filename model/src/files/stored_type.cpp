// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/stored_type.hpp>

#include <array>

namespace encore::model {
namespace {

struct Description {
  StoredType type;
  std::string_view name;
  std::size_t size;
};

/// In the order of the enumeration, so that a type is its own index.
constexpr std::array<Description, 15> descriptions = {{
    {StoredType::boolean, "BOOL", 1},
    {StoredType::u8, "U8", 1},
    {StoredType::i8, "I8", 1},
    {StoredType::f8_e4m3, "F8_E4M3", 1},
    {StoredType::f8_e5m2, "F8_E5M2", 1},
    {StoredType::i16, "I16", 2},
    {StoredType::u16, "U16", 2},
    {StoredType::f16, "F16", 2},
    {StoredType::bf16, "BF16", 2},
    {StoredType::i32, "I32", 4},
    {StoredType::u32, "U32", 4},
    {StoredType::f32, "F32", 4},
    {StoredType::i64, "I64", 8},
    {StoredType::u64, "U64", 8},
    {StoredType::f64, "F64", 8},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < descriptions.size(); ++i)
    if (descriptions[i].type != static_cast<StoredType>(i)) return false;
  return true;
}
static_assert(in_order());

}  // namespace

std::size_t size_of(StoredType type) noexcept { return descriptions[static_cast<std::size_t>(type)].size; }

std::string_view name_of(StoredType type) noexcept {
  return descriptions[static_cast<std::size_t>(type)].name;
}

std::optional<StoredType> stored_type(std::string_view name) noexcept {
  for (const Description& description : descriptions)
    if (description.name == name) return description.type;
  return std::nullopt;
}

}  // namespace encore::model
