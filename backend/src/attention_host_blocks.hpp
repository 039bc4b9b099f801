// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.hpp"
#include "micro_kernel.hpp"

#include <bit>
#include <cmath>

namespace encore::backend::impl {

/// e^x with a relative error below 2^-22 for x <= 88; 0 below -87. Plain arithmetic, so that loops over it
/// vectorise: x = n ln 2 + r, e^r by its Taylor polynomial, 2^n through the exponent bits.
inline float fast_exp(float x) {
  constexpr float shifter = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float clamped = x > -87.0F ? x : -87.0F;
  const float shifted = clamped * 1.44269504F + shifter;
  const float n = shifted - shifter;
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  float e = 1.98412698e-4F;
  e = e * r + 1.38888889e-3F;
  e = e * r + 8.33333333e-3F;
  e = e * r + 4.16666667e-2F;
  e = e * r + 1.66666667e-1F;
  e = e * r + 0.5F;
  e = e * r + 1.0F;
  e = e * r + 1.0F;
  const std::int32_t power = (std::bit_cast<std::int32_t>(shifted) << 23) + (127 << 23);
  return x > -87.0F ? e * std::bit_cast<float>(power) : 0.0F;
}
inline double fast_exp(double x) { return std::exp(x); }

/// How the rows (queries) of a block lie to its columns (keys): column c is visible to row r if
/// r + offset - window < c <= r + offset.
struct CausalBlock {
  std::int64_t rows, columns, offset, window;

  std::int64_t first(std::int64_t row) const {
    return std::clamp<std::int64_t>(row + offset + 1 - window, 0, columns);
  }
  std::int64_t end(std::int64_t row) const { return std::clamp<std::int64_t>(row + offset + 1, 0, columns); }
};

/// scores [rows, stride] = first [rows, depth] * packed second; micro-tiles that are masked entirely are left.
template <class A>
void score_product(const CausalBlock& block, std::int64_t depth, const A* first, std::int64_t first_stride,
                   const A* panels, A* scores, std::int64_t stride) {
  constexpr std::int64_t width = micro_columns<A>;
  for (std::int64_t column = 0; column < block.columns; column += width) {
    for (std::int64_t row = 0; row < block.rows; row += micro_rows) {
      if (column > row + micro_rows - 1 + block.offset || column + width <= block.first(row)) continue;
      const A* rows[micro_rows];
      for (int i = 0; i < micro_rows; ++i) rows[i] = first + std::min(row + i, block.rows - 1) * first_stride;
      micro_kernel<false>(depth, rows, panels + column * depth, scores + row * stride + column, stride);
    }
  }
}

/// sums [rows, sums_stride] += weights [rows, columns of the block] * packed second [columns of the block, width].
template <class A>
void add_row_product(const CausalBlock& block, std::int64_t width, const A* weights, std::int64_t stride,
                     const A* panels, A* sums, std::int64_t sums_stride) {
  for (std::int64_t column = 0; column < width; column += micro_columns<A>) {
    for (std::int64_t row = 0; row < block.rows; row += micro_rows) {
      const std::int64_t first = block.first(row);
      const std::int64_t end = block.end(std::min<std::int64_t>(row + micro_rows, block.rows) - 1);
      const A* rows[micro_rows];
      for (int i = 0; i < micro_rows; ++i)
        rows[i] = weights + std::min(row + i, block.rows - 1) * stride + first;
      micro_kernel<true>(end - first, rows, panels + column * block.columns + first * micro_columns<A>,
                         sums + row * sums_stride + column, sums_stride);
    }
  }
}

/// sums [columns of the block, sums_stride] += transposed weights * packed second [rows of the block, width].
template <class A>
void add_column_product(const CausalBlock& block, std::int64_t width, const A* weights, std::int64_t stride,
                        const A* panels, A* sums, std::int64_t sums_stride) {
  constexpr std::int64_t panel = micro_columns<A>;
  for (std::int64_t column = 0; column < width; column += panel) {
    for (std::int64_t key = 0; key < block.columns; key += micro_rows) {
      const std::int64_t begin = std::clamp<std::int64_t>(key - block.offset, 0, block.rows);
      const std::int64_t end =
          std::clamp<std::int64_t>(key + micro_rows - 1 + block.window - block.offset, begin, block.rows);
      micro_kernel_transposed<true>(end - begin, weights + begin * stride + key, stride,
                                    panels + column * block.rows + begin * panel,
                                    sums + key * sums_stride + column, sums_stride);
    }
  }
}

/// destination [rows, columns] = factor * source.
template <class T, class A>
void load_rows(const T* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns, A factor,
               A* destination) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      destination[r * columns + c] = factor * static_cast<A>(source[r * source_stride + c]);
}

template <class T, class A>
void store_row(const A* source, std::int64_t columns, A factor, T* destination) {
  for (std::int64_t c = 0; c < columns; ++c) destination[c] = T(source[c] * factor);
}

/// Multipliers of `count` (at most 64) neighbouring probabilities from element `first` on: 0 or
/// 1 / (1 - probability).
template <class A>
void dropout_factors(const AttentionDropout& dropout, std::uint64_t first, std::int64_t count, A* factors) {
  constexpr std::int64_t most_quads = 64 / 4 + 1;
  const double probability = *dropout.probability;
  const A kept = static_cast<A>(1.0 / (1.0 - probability));
  const RandomState state = *dropout.state;
  const std::uint32_t segment = dropout.segment;
  const std::int64_t skipped = static_cast<std::int64_t>(first % 4);
  const std::int64_t quads = (skipped + count + 3) / 4;
  std::uint32_t words[4 * most_quads];
#pragma GCC ivdep
  for (std::int64_t quad = 0; quad < quads; ++quad) {
    const PhiloxCounter counter = random_words(state, segment, first / 4 + static_cast<std::uint64_t>(quad));
    words[4 * quad] = counter.word[0];
    words[4 * quad + 1] = counter.word[1];
    words[4 * quad + 2] = counter.word[2];
    words[4 * quad + 3] = counter.word[3];
  }
  for (std::int64_t i = 0; i < count; ++i)
    factors[i] = static_cast<double>(uniform_of(words[skipped + i])) < probability ? A(0) : kept;
}

/// Consecutive pieces of a team's scratch memory, each aligned to 64 bytes.
template <class A>
class ScratchPieces {
 public:
  explicit ScratchPieces(std::byte* begin) : next_(begin) {}

  A* take(std::int64_t elements) {
    std::byte* piece = next_;
    next_ += bytes_of(elements);
    return reinterpret_cast<A*>(piece);
  }
  static std::size_t bytes_of(std::int64_t elements) {
    return (static_cast<std::size_t>(elements) * sizeof(A) + 63) / 64 * 64;
  }

 private:
  std::byte* next_;
};

}  // namespace encore::backend::impl
