// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/blas.hpp>
#include <encore/backend/data_type.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

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

// The portable kernel: blocks as in Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", 2008. A micro-tile of micro_rows x micro_columns stays in registers while k runs; its share
// of the second operand is packed so that k steps through contiguous vectors.

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
inline constexpr int micro_rows = 8;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
inline constexpr int micro_rows = 4;
#else
inline constexpr int vector_bytes = 16;
inline constexpr int micro_rows = 4;
#endif

template <class A>
inline constexpr int vector_lanes = vector_bytes / static_cast<int>(sizeof(A));
template <class A>
inline constexpr int micro_columns = 2 * vector_lanes<A>;

/// Steps of k that are packed at a time: a packed panel of micro_columns then fits half of a 48 KiB L1 cache.
inline constexpr std::int64_t k_block = 256;

inline constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Where the blocks of one tile lie in its scratch memory.
template <class T>
struct PortableScratch {
  using A = Accumulator<T>;

  PortableScratch(std::int64_t tile_rows, std::int64_t tile_columns, std::int64_t k)
      : rows(round_up(tile_rows, micro_rows)),
        columns(round_up(tile_columns, micro_columns<A>)),
        depth(std::min(k, k_block)),
        sums(k > k_block) {}

  std::int64_t first_elements() const { return round_up(rows * depth, 16); }
  std::int64_t second_elements() const { return columns * round_up(depth, vector_lanes<A>); }
  std::int64_t sum_elements() const { return sums ? rows * columns : 0; }
  std::size_t bytes() const {
    return static_cast<std::size_t>(first_elements() + second_elements() + sum_elements()) * sizeof(A);
  }

  std::int64_t rows, columns, depth;
  bool sums;  ///< partial sums are kept between blocks of k
};

/// Transposes a square of lanes x lanes in place, by log2(lanes) passes that interleave row r with row
/// r + lanes / 2.
template <class A, int... Lane>
inline void transpose_square(A (&square)[sizeof...(Lane)][sizeof...(Lane)], std::integer_sequence<int, Lane...>) {
  constexpr int lanes = sizeof...(Lane);
  typedef A Lanes __attribute__((vector_size(lanes * sizeof(A)), aligned(alignof(A)), may_alias));
  Lanes rows[lanes];
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r) rows[r] = reinterpret_cast<const Lanes*>(square)[r];
#pragma GCC unroll 4
  for (int pass = 1; pass < lanes; pass *= 2) {
    Lanes next[lanes];
#pragma GCC unroll 16
    for (int r = 0; r < lanes / 2; ++r) {
      next[2 * r] = __builtin_shufflevector(rows[r], rows[r + lanes / 2], (Lane / 2 + Lane % 2 * lanes)...);
      next[2 * r + 1] =
          __builtin_shufflevector(rows[r], rows[r + lanes / 2], (lanes / 2 + Lane / 2 + Lane % 2 * lanes)...);
    }
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r) rows[r] = next[r];
  }
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r) reinterpret_cast<Lanes*>(square)[r] = rows[r];
}

/// packed[panel][p][j] = op(second)(k_begin + p, column_begin + panel * micro_columns + j); zero past the tile.
template <class T>
void pack_second(const T* second, std::int64_t stride, bool transposed, std::int64_t k_begin, std::int64_t depth,
                 std::int64_t column_begin, std::int64_t column_end, Accumulator<T>* packed) {
  using A = Accumulator<T>;
  constexpr std::int64_t width = micro_columns<A>;
  for (std::int64_t column = column_begin; column < column_end; column += width, packed += width * depth) {
    const std::int64_t count = std::min(width, column_end - column);
    if (!transposed) {
      const T* source = second + k_begin * stride + column;
      if (count == width) {
        for (std::int64_t p = 0; p < depth; ++p)
          for (std::int64_t j = 0; j < width; ++j) packed[p * width + j] = static_cast<A>(source[p * stride + j]);
      } else {
        for (std::int64_t p = 0; p < depth; ++p)
          for (std::int64_t j = 0; j < width; ++j)
            packed[p * width + j] = j < count ? static_cast<A>(source[p * stride + j]) : A(0);
      }
      continue;
    }
    const T* source = second + column * stride + k_begin;
    constexpr int lanes = vector_lanes<A>;
    std::int64_t done = 0;
    if (count == width) {
      A square[lanes][lanes];
      for (; done + lanes <= depth; done += lanes) {
        for (std::int64_t j = 0; j < width; j += lanes) {
          for (std::int64_t r = 0; r < lanes; ++r)
            for (std::int64_t c = 0; c < lanes; ++c)
              square[r][c] = static_cast<A>(source[(j + r) * stride + done + c]);
          transpose_square(square, std::make_integer_sequence<int, lanes>());
          for (std::int64_t r = 0; r < lanes; ++r)
            std::memcpy(packed + (done + r) * width + j, square[r], sizeof square[r]);
        }
      }
    }
    for (std::int64_t j = 0; j < width; ++j)
      for (std::int64_t p = done; p < depth; ++p)
        packed[p * width + j] = j < count ? static_cast<A>(source[j * stride + p]) : A(0);
  }
}

/// The first operand as the micro-kernel reads it: element (i, p) is data[i * row_step + p * k_step].
template <class A>
struct FirstBlock {
  const A* data;
  std::int64_t row_step;
};

/// A transposed first operand, packed as packed[panel][p][i]; zero past the tile.
template <class T>
void pack_transposed_first(const T* first, std::int64_t stride, std::int64_t k_begin, std::int64_t depth,
                           std::int64_t row_begin, std::int64_t row_end, Accumulator<T>* packed) {
  using A = Accumulator<T>;
  for (std::int64_t row = row_begin; row < row_end; row += micro_rows, packed += micro_rows * depth) {
    const std::int64_t count = std::min<std::int64_t>(micro_rows, row_end - row);
    const T* source = first + k_begin * stride + row;
    for (std::int64_t p = 0; p < depth; ++p)
      for (std::int64_t i = 0; i < micro_rows; ++i)
        packed[p * micro_rows + i] = i < count ? static_cast<A>(source[p * stride + i]) : A(0);
  }
}

/// sums (micro_rows x micro_columns) = [sums +] first block * packed panel. Row i of the block starts at
/// first + row_offset[i]; KStep is 1 for rows in place and micro_rows for packed ones.
template <int KStep, bool Add, class A>
inline void micro_kernel(std::int64_t depth, const A* first, const std::int64_t* row_offset, const A* panel,
                         A* sums) {
  typedef A Lanes __attribute__((vector_size(vector_bytes), aligned(alignof(A)), may_alias));
  Lanes* stored = reinterpret_cast<Lanes*>(sums);
  Lanes left[micro_rows];
  Lanes right[micro_rows];
  const A* rows[micro_rows];
#pragma GCC unroll 16
  for (int i = 0; i < micro_rows; ++i) {
    left[i] = Add ? stored[2 * i] : Lanes{};
    right[i] = Add ? stored[2 * i + 1] : Lanes{};
    rows[i] = first + row_offset[i];
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    const Lanes* second = reinterpret_cast<const Lanes*>(panel) + 2 * p;
    const Lanes second_left = second[0];
    const Lanes second_right = second[1];
#pragma GCC unroll 16
    for (int i = 0; i < micro_rows; ++i) {
      const A value = rows[i][p * KStep];
      left[i] += value * second_left;
      right[i] += value * second_right;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < micro_rows; ++i) {
    stored[2 * i] = left[i];
    stored[2 * i + 1] = right[i];
  }
}

/// Computes one tile. `scratch` is as PortableScratch says, aligned to 64 bytes.
template <class T, class Result>
void portable_tile(const HostProduct<T, Result>& product, const ProductTile& tile, std::byte* scratch_bytes) {
  using A = Accumulator<T>;
  constexpr std::int64_t width = micro_columns<A>;
  const std::int64_t tile_rows = tile.row_end - tile.row_begin;
  const std::int64_t tile_columns = tile.column_end - tile.column_begin;
  const PortableScratch<T> scratch(tile_rows, tile_columns, product.k);
  A* first_block = reinterpret_cast<A*>(scratch_bytes);
  A* second_block = first_block + scratch.first_elements();
  A* partial_sums = second_block + scratch.second_elements();
  alignas(vector_bytes) A micro_tile[micro_rows * width];

  std::int64_t k_begin = 0;
  do {
    const std::int64_t depth = std::min(k_block, product.k - k_begin);
    const bool is_first = k_begin == 0;
    const bool is_last = k_begin + depth >= product.k;
    pack_second(product.second, product.second_stride, product.second_transposed, k_begin, depth,
                tile.column_begin, tile.column_end, second_block);
    const A* rows_in_place = nullptr;
    std::int64_t row_step = 0;
    if (product.first_transposed) {
      pack_transposed_first(product.first, product.first_stride, k_begin, depth, tile.row_begin, tile.row_end,
                            first_block);
    } else if constexpr (std::is_same_v<T, A>) {
      rows_in_place = product.first + tile.row_begin * product.first_stride + k_begin;
      row_step = product.first_stride;
    } else {
      for (std::int64_t i = 0; i < tile_rows; ++i) {
        const T* source = product.first + (tile.row_begin + i) * product.first_stride + k_begin;
        for (std::int64_t p = 0; p < depth; ++p) first_block[i * depth + p] = static_cast<A>(source[p]);
      }
      rows_in_place = first_block;
      row_step = depth;
    }

    for (std::int64_t column = 0; column < tile_columns; column += width) {
      const A* panel = second_block + column * depth;
      for (std::int64_t row = 0; row < tile_rows; row += micro_rows) {
        A* sums = scratch.sums ? partial_sums + row * scratch.columns + column * micro_rows : micro_tile;
        std::int64_t row_offset[micro_rows];
        if (rows_in_place != nullptr) {
          // Rows past the tile repeat its last one; their sums are not stored.
          for (int i = 0; i < micro_rows; ++i) row_offset[i] = std::min(row + i, tile_rows - 1) * row_step;
          is_first ? micro_kernel<1, false>(depth, rows_in_place, row_offset, panel, sums)
                   : micro_kernel<1, true>(depth, rows_in_place, row_offset, panel, sums);
        } else {
          for (int i = 0; i < micro_rows; ++i) row_offset[i] = i;
          const A* packed = first_block + row * depth;
          is_first ? micro_kernel<micro_rows, false>(depth, packed, row_offset, panel, sums)
                   : micro_kernel<micro_rows, true>(depth, packed, row_offset, panel, sums);
        }
        if (!is_last) continue;
        const std::int64_t count = std::min(width, tile_columns - column);
        for (std::int64_t i = 0; i < std::min<std::int64_t>(micro_rows, tile_rows - row); ++i) {
          const std::int64_t result_row = tile.row_begin + row + i;
          const std::int64_t result_column = tile.column_begin + column;
          Result* destination = product.result + result_row * product.result_stride + result_column;
          const A* source = sums + i * width;
          if (product.addend == nullptr && product.bias == nullptr) {
            for (std::int64_t j = 0; j < count; ++j) destination[j] = Result(product.alpha * source[j]);
          } else {
            for (std::int64_t j = 0; j < count; ++j)
              destination[j] = Result(product.alpha * source[j] + added_to(product, result_row, result_column + j));
          }
        }
      }
    }
    k_begin += depth;
  } while (k_begin < product.k);
}

}  // namespace encore::backend::impl
