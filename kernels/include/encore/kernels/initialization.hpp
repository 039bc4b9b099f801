// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// values[e] = mean + deviation * a standard normal number that depends on (seed, segment, e) only: Philox
/// and the Box-Muller transform, in double.
template <class Space, class T>
void fill_normal(Stream<Space>& stream, Vector<T, Space> values, double mean, double deviation,
                 std::uint64_t seed, std::uint32_t segment);

/// values[e] = value.
template <class Space, class T>
void fill_constant(Stream<Space>& stream, Vector<T, Space> values, double value);

/// output[e] = input[e], rounded to nearest even. Same length; they must not overlap.
template <class Space, class From, class To>
void convert(Stream<Space>& stream, Vector<const From, Space> input, Vector<To, Space> output);

}  // namespace encore::kernels
