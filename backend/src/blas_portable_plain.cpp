// SPDX-License-Identifier: Apache-2.0
#include "blas_portable.hpp"

#include "micro_kernel.hpp"

namespace encore::backend::impl {

namespace {

/// Steps of k that are packed at a time: a packed panel of micro_columns then fits half of a 48 KiB L1 cache.
constexpr std::int64_t k_block = 256;

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

/// A transposed first operand, packed as packed[panel][p][i]; zero past the tile.
template <class T>
void pack_transposed_first(const T* first, std::int64_t stride, std::int64_t k_begin, std::int64_t depth,
                           std::int64_t row_begin, std::int64_t row_end, Accumulator<T>* packed) {
  using A = Accumulator<T>;
  for (std::int64_t row = row_begin; row < row_end; row += micro_rows, packed += micro_rows * depth) {
    const std::int64_t count = std::min<std::int64_t>(micro_rows, row_end - row);
    const T* source = first + k_begin * stride + row;
    if (count == micro_rows) {
      for (std::int64_t p = 0; p < depth; ++p)
        for (std::int64_t i = 0; i < micro_rows; ++i)
          packed[p * micro_rows + i] = static_cast<A>(source[p * stride + i]);
    } else {
      for (std::int64_t p = 0; p < depth; ++p)
        for (std::int64_t i = 0; i < micro_rows; ++i)
          packed[p * micro_rows + i] = i < count ? static_cast<A>(source[p * stride + i]) : A(0);
    }
  }
}

}  // namespace

template <class T>
std::size_t portable_scratch_bytes(std::int64_t tile_rows, std::int64_t tile_columns, std::int64_t k) {
  return PortableScratch<T>(tile_rows, tile_columns, k).bytes();
}

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
        if (rows_in_place != nullptr) {
          // Rows past the tile repeat its last one; their sums are not stored.
          const A* rows[micro_rows];
          for (int i = 0; i < micro_rows; ++i)
            rows[i] = rows_in_place + std::min(row + i, tile_rows - 1) * row_step;
          is_first ? micro_kernel<false>(depth, rows, panel, sums, width)
                   : micro_kernel<true>(depth, rows, panel, sums, width);
        } else {
          const A* packed = first_block + row * depth;
          is_first ? micro_kernel_transposed<false>(depth, packed, micro_rows, panel, sums, width)
                   : micro_kernel_transposed<true>(depth, packed, micro_rows, panel, sums, width);
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
              destination[j] =
                  Result(product.alpha * source[j] + added_to(product, result_row, result_column + j));
          }
        }
      }
    }
    k_begin += depth;
  } while (k_begin < product.k);
}

int portable_vector_bytes() { return vector_bytes; }

#define ENCORE_INSTANTIATE(T, RESULT) \
  template void portable_tile<T, RESULT>(const HostProduct<T, RESULT>&, const ProductTile&, std::byte*);
ENCORE_INSTANTIATE(float, float)
ENCORE_INSTANTIATE(double, double)
ENCORE_INSTANTIATE(bfloat16, bfloat16)
ENCORE_INSTANTIATE(bfloat16, float)
#undef ENCORE_INSTANTIATE
template std::size_t portable_scratch_bytes<float>(std::int64_t, std::int64_t, std::int64_t);
template std::size_t portable_scratch_bytes<double>(std::int64_t, std::int64_t, std::int64_t);
template std::size_t portable_scratch_bytes<bfloat16>(std::int64_t, std::int64_t, std::int64_t);

}  // namespace encore::backend::impl
