// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>

#include <cstddef>
#include <cstdint>

namespace encore::backend::impl {

/// One host product, as the kernels see it: result = alpha * op(first) * op(second) + beta * addend + bias.
template <class T, class Result>
struct HostProduct {
  const T* first;
  const T* second;
  Result* result;
  const Result* addend;  ///< null: nothing is added
  const T* bias;         ///< null: nothing is added
  std::int64_t first_stride, second_stride, result_stride, addend_stride;
  std::int64_t m, n, k;
  bool first_transposed, second_transposed;
  Accumulator<T> alpha, beta;
};

/// A rectangle of the result.
struct ProductTile {
  std::int64_t row_begin, row_end, column_begin, column_end;
};

/// The part of beta * addend + bias that belongs to element (i, j).
template <class T, class Result>
inline Accumulator<T> added_to(const HostProduct<T, Result>& product, std::int64_t i, std::int64_t j) {
  Accumulator<T> value(0);
  if (product.addend != nullptr)
    value = product.beta * static_cast<Accumulator<T>>(product.addend[i * product.addend_stride + j]);
  if (product.bias != nullptr) value += static_cast<Accumulator<T>>(product.bias[j]);
  return value;
}

/// Scratch memory of portable_tile for tiles of this size.
template <class T>
std::size_t portable_scratch_bytes(std::int64_t tile_rows, std::int64_t tile_columns, std::int64_t k);

/// Computes one tile. `scratch` is the tile's own, aligned to 64 bytes.
template <class T, class Result>
void portable_tile(const HostProduct<T, Result>& product, const ProductTile& tile, std::byte* scratch);

/// Bytes of the vectors that it computes with.
int portable_vector_bytes();

}  // namespace encore::backend::impl
