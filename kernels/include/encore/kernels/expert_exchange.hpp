// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

/// What ranks that have different experts tell each other about the routing. Sizes are those of the buffers; how much
/// of them is used only the device knows.
namespace encore::kernels {

/// groups[i] = experts[i] / size, the number of its group of `size` neighbouring experts; -1 stays.
/// Both [N, K]. May be captured.
template <class Space>
void group_experts(Stream<Space>& stream, Matrix<const std::int32_t, Space> experts, std::int64_t size,
                   Matrix<std::int32_t, Space> groups);

/// The routing of S slots as one message for each of P ranks: message[p] is the router's weights of the slots [p S/P,
/// (p + 1) S/P), then the numbers of their experts in the same type. A slot without a pair gets weight 0 and expert -1.
/// experts and weights [N, K]; source [S]: the pair of a slot, -1 for none, or empty: slot s is pair s; row_of [N, K] or
/// empty: pairs with -1 there count as without an expert; message [P, 2 S / P].
/// Throws ConfigurationError if the shapes do not fit. May be captured.
template <class Space, class A>
void pack_routing(Stream<Space>& stream, Matrix<const std::int32_t, Space> experts,
                  Matrix<const A, Space> weights, Vector<const std::int32_t, Space> source,
                  Matrix<const std::int32_t, Space> row_of, Matrix<A, Space> message);

/// Messages of P ranks as slots again, in which the experts [first, first + count) have the numbers from 0 on and all
/// others are -1, none.
/// message [P, 2 n]; experts and weights [N, K] with N K = P n. May be captured.
template <class Space, class A>
void unpack_routing(Stream<Space>& stream, Matrix<const A, Space> message, std::int64_t first,
                    std::int64_t count, Matrix<std::int32_t, Space> experts, Matrix<A, Space> weights);

/// result[t, k] = values[row_of[t, k]], and 0 where that is -1.
/// values [R]; row_of and result [N, K]. May be captured.
template <class Space, class A>
void values_of_pairs(Stream<Space>& stream, Vector<const A, Space> values,
                     Matrix<const std::int32_t, Space> row_of, Matrix<A, Space> result);

}  // namespace encore::kernels
