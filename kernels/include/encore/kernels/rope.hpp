// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// Which entries of a head turn together: i and i + head_dim / 2 (Hugging Face), or 2i and 2i + 1 (the
/// paper).
enum class RopeStyle { half_split, interleaved };

/// cosine[p, i] = cos(p * theta^(-2i / head_dim)), and the sine, computed in double.
/// cosine and sine [sequence, head_dim / 2], A = float or double.
template <class Space, class A>
void rope_tables(Stream<Space>& stream, double theta, Matrix<A, Space> cosine, Matrix<A, Space> sine);

/// Rotates pairs (x, y) to (x cos - y sin, x sin + y cos) in place; `inverse` rotates back, which is the
/// backward pass. Su et al., "RoFormer", 2021.
/// data: `tokens` rows, `row_stride` entries apart, of which the first heads * head_dim are rotated (so that
/// the queries and keys of a fused projection turn in one call); row t stands at position t % sequence;
/// tables as rope_tables gives them, with at least `sequence` rows.
template <class Space, class T>
void rope(Stream<Space>& stream, RopeStyle style, Matrix<const Accumulator<T>, Space> cosine,
          Matrix<const Accumulator<T>, Space> sine, T* data, std::int64_t tokens, std::int64_t sequence,
          std::int64_t heads, std::int64_t head_dim, std::int64_t row_stride, bool inverse);

}  // namespace encore::kernels
