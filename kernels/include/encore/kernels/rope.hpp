// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// Which entries of a head turn together: i and i + head_dim / 2 (Hugging Face), or 2i and 2i + 1 (the
/// paper).
enum class RopeStyle { half_split, interleaved };

/// How far the pairs of a head turn from one position to the next: pair i by theta^(-2i / head_dim), divided by
/// `factor` from pair `high` on, by less before, and not at all up to pair `low`.
struct RopeFrequencies {
  RopeFrequencies(double the_theta) : theta(the_theta) {}  // NOLINT: a base alone is a whole description

  double theta;
  double factor = 1;
  double low = 0, high = 1;  ///< need not be whole
  double scale = 1;          ///< of both tables

  KOKKOS_FUNCTION double of(std::int64_t pair, std::int64_t pairs) const {
    const double plain = Kokkos::pow(theta, -static_cast<double>(pair) / static_cast<double>(pairs));
    const double way = (static_cast<double>(pair) - low) / (high - low);
    const double ramp = way < 0 ? 0 : way > 1 ? 1 : way;
    return plain * (1 - ramp) + plain / factor * ramp;
  }
};

/// What YaRN stretches the positions of a model by.
struct YarnOptions {
  double factor;              ///< above 1; 1: not at all
  double original_positions;  ///< of the model before
  double beta_fast;           ///< a pair that turns as often as this within those positions is left alone,
  double beta_slow;           ///< and one that turns less often than this is stretched all the way
  bool truncate;              ///< rounds the ends of what lies between outwards to whole pairs
  double attention_factor;    ///< scale of the tables; 0: 0.1 ln(factor) + 1
};

/// Peng et al., "YaRN", 2023, section 3.2, with the bounds that Hugging Face puts on the ramp.
RopeFrequencies yarn_frequencies(double theta, std::int64_t head_dim, const YarnOptions& options);

/// cosine[p, i] = scale * cos(p * frequencies.of(i, head_dim / 2)), and the sine, computed in double; a number alone
/// is theta. cosine and sine [sequence, head_dim / 2], A = float or double.
template <class Space, class A>
void rope_tables(Stream<Space>& stream, const RopeFrequencies& frequencies, Matrix<A, Space> cosine,
                 Matrix<A, Space> sine);

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
