// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <cstddef>
#include <initializer_list>

namespace encore::backend {

/// A byte range that a kernel reads or writes. The host replay places a barrier only where ranges conflict.
struct Access {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool writes = false;
};

using Accesses = std::initializer_list<Access>;

template <class View>
  requires requires(const View& v) {
    v.data();
    v.span();
  }
Access read(const View& view) {
  const auto* data = reinterpret_cast<const std::byte*>(view.data());
  return {data, data + view.span() * sizeof(typename View::value_type), false};
}

template <class View>
  requires requires(const View& v) {
    v.data();
    v.span();
  }
Access write(const View& view) {
  Access access = read(view);
  access.writes = true;
  return access;
}

template <class T>
Access read(const T* data, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(data), reinterpret_cast<const std::byte*>(data + count), false};
}

template <class T>
Access write(const T* data, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(data), reinterpret_cast<const std::byte*>(data + count), true};
}

inline bool conflict(const Access& first, const Access& second) {
  return (first.writes || second.writes) && first.begin < second.end && second.begin < first.end;
}

}  // namespace encore::backend
