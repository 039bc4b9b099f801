// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

/// From the order of tokens to the order of experts and back. A pair is a token's k-th choice, number token *
/// K + k of N * K < 2^31. Every function reads the routing from device memory and touches no row without a
/// source, so that whatever stands there, NaN too, reaches nothing.
namespace encore::kernels {

/// Where the rows of each expert lie. All on the device.
template <class Space>
struct ExpertRows {
  Vector<std::int32_t, Space> begins, ends;  ///< [E]: expert e has rows [begins[e], ends[e]), in rising order
  Vector<std::int32_t, Space> source;        ///< [R]: pair of a row, -1 for a row without one
  Matrix<std::int32_t, Space> row_of;        ///< [N, K]: row of a pair, -1 for a dropped or unused one
  std::int32_t* needed;                      ///< rows R with which no pair would have been dropped
};

/// Rows of the workspace of dispatch.
std::int64_t dispatch_workspace_rows(std::int64_t tokens, std::int64_t topk);

/// Gives each routed pair a row. Inside an expert rows are in order of their pairs.
/// capacity 0: no pair is dropped while R rows suffice; experts lie one behind the other without gaps, the
/// rest of the R rows is unused. Pairs whose row would be R or more are dropped, and *needed > R tells so.
/// capacity C > 0: expert e owns rows [e C, (e + 1) C), keeps its first C pairs and drops the others; R >= E
/// C.
/// experts [N, K], each in [-1, E), -1: no expert; workspace [dispatch_workspace_rows(N, K), E]. Every entry
/// of `rows` is written. Throws ConfigurationError if the shapes do not fit. May be captured; one or two
/// launches.
template <class Space>
void dispatch(Stream<Space>& stream, Matrix<const std::int32_t, Space> experts, std::int64_t capacity,
              const ExpertRows<Space>& rows, Matrix<std::int32_t, Space> workspace);

/// output[row_of[t, k]] = input[t]; rows without a source are not touched. Forward it brings the tokens to their
/// experts; with the gradient of combine_forward's output it is the backward of that.
/// input [N, hidden]; row_of [N, K]; output [R, hidden]. May be captured.
template <class Space, class T>
void gather_rows(Stream<Space>& stream, Matrix<const T, Space> input,
                 Matrix<const std::int32_t, Space> row_of, Matrix<T, Space> output);

/// The backward of gather_rows: input_gradient[t] (+)= sum over k, in order, of rows_gradient[row_of[t, k]];
/// a token without rows gets zero unless `accumulate`.
/// rows_gradient [R, hidden]; row_of [N, K]; input_gradient [N, hidden]. May be captured.
template <class Space, class T>
void gather_rows_backward(Stream<Space>& stream, Matrix<const T, Space> rows_gradient,
                          Matrix<const std::int32_t, Space> row_of, Matrix<T, Space> input_gradient,
                          bool accumulate);

}  // namespace encore::kernels
