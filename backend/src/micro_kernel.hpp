// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace encore::backend::impl {

// Host matrix blocks as in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008. A
// micro-tile of micro_rows x micro_columns stays in registers while k runs; its share
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

inline constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

#if defined(__CUDACC__)

/// nvcc hands the shuffles below to the host compiler with their pack expansion lost.
template <class A, int... Lane>
inline void transpose_square(A (&square)[sizeof...(Lane)][sizeof...(Lane)],
                             std::integer_sequence<int, Lane...>) {
  constexpr int lanes = sizeof...(Lane);
  for (int r = 0; r < lanes; ++r)
    for (int c = 0; c < r; ++c) std::swap(square[r][c], square[c][r]);
}

#else

/// Transposes a square of lanes x lanes in place, by log2(lanes) passes that interleave row r with row
/// r + lanes / 2.
template <class A, int... Lane>
inline void transpose_square(A (&square)[sizeof...(Lane)][sizeof...(Lane)],
                             std::integer_sequence<int, Lane...>) {
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

#endif

/// packed[panel][p][j] = op(second)(k_begin + p, column_begin + panel * micro_columns + j); zero past the tile.
template <class T>
void pack_second(const T* second, std::int64_t stride, bool transposed, std::int64_t k_begin,
                 std::int64_t depth, std::int64_t column_begin, std::int64_t column_end,
                 Accumulator<T>* packed) {
  using A = Accumulator<T>;
  constexpr std::int64_t width = micro_columns<A>;
  for (std::int64_t column = column_begin; column < column_end; column += width, packed += width * depth) {
    const std::int64_t count = std::min(width, column_end - column);
    if (!transposed) {
      const T* source = second + k_begin * stride + column;
      if (count == width) {
        for (std::int64_t p = 0; p < depth; ++p)
          for (std::int64_t j = 0; j < width; ++j)
            packed[p * width + j] = static_cast<A>(source[p * stride + j]);
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

/// The kernel behind the two below: element (i, p) of the first operand is first(i, p).
template <bool Add, class A, class First>
inline void micro_kernel_of(std::int64_t depth, const A* panel, A* sums, std::int64_t sums_stride,
                            const First& first) {
  typedef A Lanes __attribute__((vector_size(vector_bytes), aligned(alignof(A)), may_alias));
  const auto stored = [&](int i) { return reinterpret_cast<Lanes*>(sums + i * sums_stride); };
  Lanes left[micro_rows];
  Lanes right[micro_rows];
#pragma GCC unroll 16
  for (int i = 0; i < micro_rows; ++i) {
    left[i] = Add ? stored(i)[0] : Lanes{};
    right[i] = Add ? stored(i)[1] : Lanes{};
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    const Lanes* second = reinterpret_cast<const Lanes*>(panel) + 2 * p;
    const Lanes second_left = second[0];
    const Lanes second_right = second[1];
#pragma GCC unroll 16
    for (int i = 0; i < micro_rows; ++i) {
      const A value = first(i, p);
      left[i] += value * second_left;
      right[i] += value * second_right;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < micro_rows; ++i) {
    stored(i)[0] = left[i];
    stored(i)[1] = right[i];
  }
}

/// sums (micro_rows x micro_columns, rows sums_stride apart) = [sums +] first (micro_rows x depth) * packed panel.
/// Row i of `first` starts at rows[i].
template <bool Add, class A>
inline void micro_kernel(std::int64_t depth, const A* const (&rows)[micro_rows], const A* panel, A* sums,
                         std::int64_t sums_stride) {
  micro_kernel_of<Add>(depth, panel, sums, sums_stride, [&](int i, std::int64_t p) { return rows[i][p]; });
}

/// As above, with element (i, p) of `first` at first[p * k_stride + i].
template <bool Add, class A>
inline void micro_kernel_transposed(std::int64_t depth, const A* first, std::int64_t k_stride, const A* panel,
                                    A* sums, std::int64_t sums_stride) {
  micro_kernel_of<Add>(depth, panel, sums, sums_stride,
                       [&](int i, std::int64_t p) { return first[p * k_stride + i]; });
}

}  // namespace encore::backend::impl
