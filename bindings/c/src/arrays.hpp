// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "stream.hpp"

// The caller's addresses as views, checked as far as they can be.

namespace encore::c {

/// Throws ConfigurationError unless it can be an extent. The largest leaves room for rounding up.
inline std::size_t extent(std::int64_t value, const char* name) {
  if (value < 0) throw ConfigurationError("an extent of '" + std::string(name) + "' is negative");
  if (value > INT64_MAX / 4)
    throw ConfigurationError("an extent of '" + std::string(name) + "' is more than any memory holds");
  return static_cast<std::size_t>(value);
}

/// Throws ConfigurationError where the product is more bytes than an address space holds.
inline std::size_t product(std::initializer_list<std::size_t> factors, const char* name) {
  std::ptrdiff_t result = 1;
  for (const std::size_t factor : factors) {
    if (factor == 0) return 0;
    if (__builtin_mul_overflow(result, factor, &result))
      throw ConfigurationError("'" + std::string(name) + "' of these extents has more bytes than any memory");
  }
  return static_cast<std::size_t>(result);
}

/// An array that is needed. `T const` for reading.
template <class T, class Space, class Pointer>
backend::Vector<T, Space> vector(Pointer* data, std::int64_t elements, const char* name) {
  if (elements > 0) require_pointer(data, name);
  product({extent(elements, name), sizeof(T)}, name);
  return backend::Vector<T, Space>(static_cast<T*>(data), extent(elements, name));
}

template <class T, class Space, class Pointer>
backend::Matrix<T, Space> matrix(Pointer* data, std::int64_t rows, std::int64_t columns, const char* name) {
  if (rows > 0 && columns > 0) require_pointer(data, name);
  product({extent(rows, name), extent(columns, name), sizeof(T)}, name);
  return backend::Matrix<T, Space>(static_cast<T*>(data), extent(rows, name), extent(columns, name));
}

/// An array that may be NULL: an empty view then.
template <class T, class Space, class Pointer>
backend::Vector<T, Space> optional_vector(Pointer* data, std::int64_t elements, const char* name) {
  if (data == nullptr) return {};
  return vector<T, Space>(data, elements, name);
}

template <class T, class Space, class Pointer>
backend::Matrix<T, Space> optional_matrix(Pointer* data, std::int64_t rows, std::int64_t columns,
                                          const char* name) {
  if (data == nullptr) return {};
  return matrix<T, Space>(data, rows, columns, name);
}

}  // namespace encore::c
