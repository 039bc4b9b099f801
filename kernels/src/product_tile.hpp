// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shapes.hpp"

namespace encore::kernels::impl {

/// The index along which an operand's elements are neighbours in memory.
enum class Along { depth, edge };

/// A tile of at most 64 x 64 sums of products, held by a team: threads have 4 x 4 sums each in registers, a host
/// thread all of them in scratch. The operands are functions of (row, k) and (k, column), so that factors,
/// masks and other types enter where they are staged. Sums run over rising k on every space.
struct ProductTileShape {
  static constexpr int edge = 64;
  static constexpr int threads = 256;
  static constexpr int depth = 16;                ///< staged at a time on a GPU
  static constexpr int staged_stride = edge + 4;  ///< of a staged row: keeps float4 alignment, spreads banks
  static constexpr int host_depth = 64;

  template <class Space, class A>
  static constexpr std::size_t scratch_bytes() {
    if constexpr (backend::is_host_space<Space>) return (2 * host_depth + 2 * edge) * edge * sizeof(A);
    return 2 * depth * staged_stride * sizeof(A);
  }
};

template <class A, class Team>
class ProductTile : ProductTileShape {
 public:
  /// Two tiles that are in use at the same time have different slots.
  KOKKOS_FUNCTION ProductTile(const Team& team, std::int64_t rows, std::int64_t columns, int = 0)
      : team_(team), rows_(limited(rows)), columns_(limited(columns)) {}

  /// sums(i, j) += sum over k < count of first(i, k) * second(k, j). Every thread of the team must call it.
  template <Along First, Along Second, class FirstOperand, class SecondOperand>
  KOKKOS_FUNCTION void add(std::int64_t count, const FirstOperand& first, const SecondOperand& second) {
    A* first_stage = team_.template scratch<A>();
    A* second_stage = first_stage + depth * staged_stride;
    const int x = team_.rank() % 16, y = team_.rank() / 16;
    for (std::int64_t begin = 0; begin < count; begin += depth) {
      team_.barrier();
      for (int item = team_.rank(); item < edge * depth; item += threads) {
        const int i = First == Along::depth ? item / depth : item % edge;
        const int k = First == Along::depth ? item % depth : item / edge;
        first_stage[k * staged_stride + i] = i < rows_ && begin + k < count ? first(i, begin + k) : A(0);
      }
      for (int item = team_.rank(); item < edge * depth; item += threads) {
        const int j = Second == Along::depth ? item / depth : item % edge;
        const int k = Second == Along::depth ? item % depth : item / edge;
        second_stage[k * staged_stride + j] = j < columns_ && begin + k < count ? second(begin + k, j) : A(0);
      }
      team_.barrier();
      for (int k = 0; k < depth; ++k) {
        const auto left = backend::load_packet<4>(first_stage + k * staged_stride, y);
        const auto right = backend::load_packet<4>(second_stage + k * staged_stride, x);
        for (int r = 0; r < 4; ++r)
          for (int c = 0; c < 4; ++c) sums_[r][c] += left[r] * right[c];
      }
    }
  }

  /// body(i, j, sum) for each element that a thread holds.
  template <class Body>
  KOKKOS_FUNCTION void for_each(const Body& body) {
    const int x = team_.rank() % 16, y = team_.rank() / 16;
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c)
        if (y * 4 + r < rows_ && x * 4 + c < columns_) body(y * 4 + r, x * 4 + c, sums_[r][c]);
  }

  /// body(i, sum over j of term(i, j, sums(i, j))), once a row.
  template <class Term, class Body>
  KOKKOS_FUNCTION void sum_rows(const Term& term, const Body& body) {
    A* parts = team_.template scratch<A>();
    const int x = team_.rank() % 16, y = team_.rank() / 16;
    team_.barrier();
    for (int r = 0; r < 4; ++r) {
      A total(0);
      for (int c = 0; c < 4; ++c)
        if (y * 4 + r < rows_ && x * 4 + c < columns_) total += term(y * 4 + r, x * 4 + c, sums_[r][c]);
      parts[(y * 4 + r) * 17 + x] = total;
    }
    team_.barrier();
    if (team_.rank() < rows_) {
      A total(0);
      for (int part = 0; part < 16; ++part) total += parts[team_.rank() * 17 + part];
      body(team_.rank(), total);
    }
  }

  /// sums(i, j) += factor(i, j) * other.sums(i, j), for a tile of the same team and size.
  template <class Factor>
  KOKKOS_FUNCTION void add_scaled(const ProductTile& other, const Factor& factor) {
    const int x = team_.rank() % 16, y = team_.rank() / 16;
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c)
        if (y * 4 + r < rows_ && x * 4 + c < columns_)
          sums_[r][c] += factor(y * 4 + r, x * 4 + c) * other.sums_[r][c];
  }

 private:
  KOKKOS_FUNCTION static int limited(std::int64_t count) {
    return count < edge ? static_cast<int>(count) : edge;
  }

  const Team& team_;
  int rows_, columns_;
  A sums_[4][4] = {};
};

template <class A>
class ProductTile<A, backend::HostTeam> : ProductTileShape {
 public:
  KOKKOS_FUNCTION ProductTile(const backend::HostTeam& team, std::int64_t rows, std::int64_t columns,
                              int slot = 0)
      : first_(team.scratch<A>()),
        second_(first_ + host_depth * edge),
        sums_(second_ + host_depth * edge + slot * edge * edge),
        rows_(static_cast<int>(rows < edge ? rows : edge)),
        columns_(static_cast<int>(columns < edge ? columns : edge)) {
    for (int i = 0; i < edge * edge; ++i) sums_[i] = 0;
  }

  template <Along First, Along Second, class FirstOperand, class SecondOperand>
  KOKKOS_FUNCTION void add(std::int64_t count, const FirstOperand& first, const SecondOperand& second) {
    for (std::int64_t begin = 0; begin < count; begin += host_depth) {
      const int step = static_cast<int>(count - begin < host_depth ? count - begin : host_depth);
      stage<First>(first_, rows_, step, [&](int i, int k) { return first(i, begin + k); });
      stage<Second>(second_, columns_, step, [&](int j, int k) { return second(begin + k, j); });
      for (int j = 0; j < columns_; j += block_columns)
        for (int i = 0; i < rows_; i += block_rows) add_block(i, j, step);
    }
  }

  template <class Body>
  KOKKOS_FUNCTION void for_each(const Body& body) {
    for (int i = 0; i < rows_; ++i)
      for (int j = 0; j < columns_; ++j) body(i, j, sums_[i * edge + j]);
  }

  template <class Term, class Body>
  KOKKOS_FUNCTION void sum_rows(const Term& term, const Body& body) {
    for (int i = 0; i < rows_; ++i) {
      A total(0);
      for (int j = 0; j < columns_; ++j) total += term(i, j, sums_[i * edge + j]);
      body(i, total);
    }
  }

  /// sums(i, j) += factor(i, j) * other.sums(i, j), for a tile of the same team and size.
  template <class Factor>
  KOKKOS_FUNCTION void add_scaled(const ProductTile& other, const Factor& factor) {
    for (int i = 0; i < rows_; ++i)
      for (int j = 0; j < columns_; ++j) sums_[i * edge + j] += factor(i, j) * other.sums_[i * edge + j];
  }

 private:
  static constexpr int block_rows = 4;
#if defined(__AVX__)
  static constexpr int block_columns = 16;
#else
  static constexpr int block_columns = 8;
#endif

  /// staged[k * edge + i] = element(i, k), zero up to whole blocks.
  template <Along Order, class Element>
  KOKKOS_FUNCTION static void stage(A* staged, int count, int step, const Element& element) {
    const int padded = static_cast<int>(rounded_up_quotient(count, block_columns)) * block_columns;
    if constexpr (Order == Along::edge) {
      for (int k = 0; k < step; ++k) {
        A* row = staged + k * edge;
#pragma GCC ivdep
        for (int i = 0; i < count; ++i) row[i] = element(i, k);
        for (int i = count; i < padded; ++i) row[i] = 0;
      }
    } else {
      for (int i = 0; i < padded; ++i)
        for (int k = 0; k < step; ++k) staged[k * edge + i] = i < count ? element(i, k) : A(0);
    }
  }

  KOKKOS_FUNCTION void add_block(int i, int j, int step) {
    A block[block_rows][block_columns];
    for (int r = 0; r < block_rows; ++r)
      for (int c = 0; c < block_columns; ++c) block[r][c] = sums_[(i + r) * edge + j + c];
    for (int k = 0; k < step; ++k) {
      const A* left = first_ + k * edge + i;
      const A* right = second_ + k * edge + j;
#if !defined(__CUDACC__)
#pragma GCC unroll 4
#endif
      for (int r = 0; r < block_rows; ++r)
#if !defined(__CUDACC__)
#pragma GCC unroll 16
#endif
        for (int c = 0; c < block_columns; ++c) block[r][c] += left[r] * right[c];
    }
    for (int r = 0; r < block_rows; ++r)
      for (int c = 0; c < block_columns; ++c) sums_[(i + r) * edge + j + c] = block[r][c];
  }

  A* first_;
  A* second_;
  A* sums_;
  int rows_, columns_;
};

}  // namespace encore::kernels::impl
