// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/columns.hpp>

#include "shapes.hpp"

namespace encore::kernels::impl {

/// All from the first element to the last, as if the columns between were touched too.
template <class T>
backend::Access read(const Columns<T>& columns) {
  return backend::read(columns.data, columns.span());
}
template <class T>
backend::Access write(const Columns<T>& columns) {
  return backend::write(columns.data, columns.span());
}

/// Whether every row starts at a multiple of `Width` elements.
template <int Width, class T>
bool is_aligned(const Columns<T>& columns) {
  return columns.stride % Width == 0 && is_aligned<Width>(columns.data);
}

}  // namespace encore::kernels::impl
