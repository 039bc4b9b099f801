// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/bfloat16.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace encore::backend {

/// Element type of a named buffer.
enum class DataType { float64, float32, bfloat16, int64, int32, uint8, uint64 };

/// Bytes of one element.
constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::float64:
    case DataType::int64:
    case DataType::uint64: return 8;
    case DataType::float32:
    case DataType::int32: return 4;
    case DataType::bfloat16: return 2;
    case DataType::uint8: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::float64: return "float64";
    case DataType::float32: return "float32";
    case DataType::bfloat16: return "bfloat16";
    case DataType::int64: return "int64";
    case DataType::int32: return "int32";
    case DataType::uint8: return "uint8";
    case DataType::uint64: return "uint64";
  }
  return "unknown";
}

template <class T>
struct DataTypeOf;
template <>
struct DataTypeOf<double> {
  static constexpr DataType value = DataType::float64;
};
template <>
struct DataTypeOf<float> {
  static constexpr DataType value = DataType::float32;
};
template <>
struct DataTypeOf<bfloat16> {
  static constexpr DataType value = DataType::bfloat16;
};
template <>
struct DataTypeOf<std::int64_t> {
  static constexpr DataType value = DataType::int64;
};
template <>
struct DataTypeOf<std::int32_t> {
  static constexpr DataType value = DataType::int32;
};
template <>
struct DataTypeOf<std::uint8_t> {
  static constexpr DataType value = DataType::uint8;
};
template <>
struct DataTypeOf<std::uint64_t> {
  static constexpr DataType value = DataType::uint64;
};

/// The DataType of a C++ element type; `const` is ignored.
template <class T>
inline constexpr DataType data_type_of = DataTypeOf<std::remove_const_t<T>>::value;

/// Type in which sums and statistics of `T` are formed: float, and double for double.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<std::remove_const_t<T>>::type;

}  // namespace encore::backend
