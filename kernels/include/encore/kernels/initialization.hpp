// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

// With `first`, a multiple of 4, values are those from element `first` on of a longer array: below, e is first + the index.

/// values[e] = mean + deviation * a standard normal number that depends on (seed, segment, e) only: Philox
/// and the Box-Muller transform, in double.
template <class Space, class T>
void fill_normal(Stream<Space>& stream, Vector<T, Space> values, double mean, double deviation,
                 std::uint64_t seed, std::uint32_t segment, std::int64_t first = 0);

/// values[e] = uniform in [least, most), a number that depends on (seed, segment, e) only: of Philox, in double.
template <class Space, class T>
void fill_uniform(Stream<Space>& stream, Vector<T, Space> values, double least, double most,
                  std::uint64_t seed, std::uint32_t segment, std::int64_t first = 0);

/// values[e] = ln(e + 1): logarithms of decay rates of a state space's heads.
template <class Space, class T>
void fill_log_of_rank(Stream<Space>& stream, Vector<T, Space> values, std::int64_t first = 0);

/// values[e] with softplus(values[e]) = max(exp(uniform in [ln least, ln most)), floor), drawn as in fill_uniform:
/// time steps of a state space before the softplus.
template <class Space, class T>
void fill_inverse_softplus_of_step(Stream<Space>& stream, Vector<T, Space> values, double least, double most,
                                   double floor, std::uint64_t seed, std::uint32_t segment,
                                   std::int64_t first = 0);

/// values[e] = value.
template <class Space, class T>
void fill_constant(Stream<Space>& stream, Vector<T, Space> values, double value);

/// output[e] = input[e], rounded to nearest even. Same length; they must not overlap.
template <class Space, class From, class To>
void convert(Stream<Space>& stream, Vector<const From, Space> input, Vector<To, Space> output);

}  // namespace encore::kernels
