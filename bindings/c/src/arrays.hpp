// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "stream.hpp"

// The caller's addresses as views, checked as far as they can be.

namespace encore::c {

/// Throws ConfigurationError unless it can be an extent.
inline std::size_t extent(std::int64_t value, const char* name) {
  if (value < 0) throw ConfigurationError("an extent of '" + std::string(name) + "' is negative");
  return static_cast<std::size_t>(value);
}

/// An array that is needed. `T const` for reading.
template <class T, class Space, class Pointer>
backend::Vector<T, Space> vector(Pointer* data, std::int64_t elements, const char* name) {
  if (elements > 0) require_pointer(data, name);
  return backend::Vector<T, Space>(static_cast<T*>(data), extent(elements, name));
}

template <class T, class Space, class Pointer>
backend::Matrix<T, Space> matrix(Pointer* data, std::int64_t rows, std::int64_t columns, const char* name) {
  if (rows > 0 && columns > 0) require_pointer(data, name);
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
