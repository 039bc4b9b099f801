// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <encore/backend/error.hpp>
#include <encore/model/files/safetensors_file.hpp>
#include <limits>

#include "text.hpp"

namespace encore::model {
namespace {

float float_from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// IEEE 754 binary16: sign, 5 bits of exponent with bias 15, 10 bits of fraction.
float float_from_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  float magnitude = 0;
  if (exponent == 0x1f) {
    magnitude =
        fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction | 0x400), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// Copies every element out, whatever the address of the bytes, and converts it.
template <class Stored, class Result, class Convert>
std::vector<Result> converted(const StoredTensor& tensor, Convert convert) {
  std::vector<Result> result(static_cast<std::size_t>(tensor.elements()));
  for (std::size_t i = 0; i < result.size(); ++i) {
    Stored value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(Stored), sizeof(Stored));
    result[i] = convert(value);
  }
  return result;
}

template <class Result>
std::vector<Result> floating_values(const StoredTensor& tensor, const std::filesystem::path& path) {
  const auto plain = [](auto value) { return static_cast<Result>(value); };
  switch (tensor.type) {
    case StoredType::f64: return converted<double, Result>(tensor, plain);
    case StoredType::f32: return converted<float, Result>(tensor, plain);
    case StoredType::bf16:
      return converted<std::uint16_t, Result>(
          tensor, [](std::uint16_t bits) { return static_cast<Result>(float_from_bf16(bits)); });
    case StoredType::f16:
      return converted<std::uint16_t, Result>(
          tensor, [](std::uint16_t bits) { return static_cast<Result>(float_from_f16(bits)); });
    default:
      throw InputFileError(fmt::format("tensor {} of {} is of type {}, but F64, F32, F16 or BF16 is needed",
                                       in_quotes(tensor.name), path_in_quotes(path), name_of(tensor.type)));
  }
}

}  // namespace

std::vector<float> float32_of(const StoredTensor& tensor, const std::filesystem::path& file) {
  return floating_values<float>(tensor, file);
}

std::vector<float> SafetensorsFile::float32(std::string_view name) const {
  return float32_of(tensor(name), path());
}

std::vector<double> SafetensorsFile::float64(std::string_view name) const {
  return floating_values<double>(tensor(name), path());
}

std::vector<std::int64_t> SafetensorsFile::int64(std::string_view name) const {
  const StoredTensor& stored = tensor(name);
  const auto plain = [](auto value) { return static_cast<std::int64_t>(value); };
  switch (stored.type) {
    case StoredType::boolean:
    case StoredType::u8: return converted<std::uint8_t, std::int64_t>(stored, plain);
    case StoredType::i8: return converted<std::int8_t, std::int64_t>(stored, plain);
    case StoredType::i16: return converted<std::int16_t, std::int64_t>(stored, plain);
    case StoredType::u16: return converted<std::uint16_t, std::int64_t>(stored, plain);
    case StoredType::i32: return converted<std::int32_t, std::int64_t>(stored, plain);
    case StoredType::u32: return converted<std::uint32_t, std::int64_t>(stored, plain);
    case StoredType::i64: return converted<std::int64_t, std::int64_t>(stored, plain);
    case StoredType::u64:
      return converted<std::uint64_t, std::int64_t>(stored, [&](std::uint64_t value) {
        if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
          throw InputFileError(fmt::format("tensor {} of {} holds {}, which does not fit into 64 signed bits",
                                           in_quotes(name), path_in_quotes(path()), value));
        return static_cast<std::int64_t>(value);
      });
    default:
      throw InputFileError(fmt::format("tensor {} of {} is of type {}, but an integer type is needed",
                                       in_quotes(name), path_in_quotes(path()), name_of(stored.type)));
  }
}

}  // namespace encore::model
