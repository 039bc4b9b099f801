// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

/// Kernels of generation: a step takes the next few tokens of every sequence, of which all that came before is kept in
/// caches. Where a sequence stands is read from device memory, so one recording serves every step.
namespace encore::kernels {

/// The rows of a step: row s * tokens + t belongs to sequence s, position first[s] + t; those with t >= count[s] hold
/// nothing, are left out of every cache, and their results are zero.
template <class Space>
struct DecodeRows {
  Vector<const std::int32_t, Space> first;  ///< [sequences]: the position of the first token of the step
  Vector<const std::int32_t, Space> count;  ///< [sequences]: 0 to tokens
  std::int64_t tokens = 1;                  ///< of a sequence in a step

  std::int64_t sequences() const { return static_cast<std::int64_t>(first.extent(0)); }
  std::int64_t rows() const { return sequences() * tokens; }
};

/// output[row] = table[tokens[s, position]] + positions[position]; live[row] = 1, or 0 for a row that holds nothing.
/// tokens [sequences, capacity], each in [0, vocabulary); table [vocabulary, hidden]; positions [>= capacity, hidden]
/// or empty; output [rows, hidden]; live [rows] or empty. May be captured.
template <class Space, class T>
void decode_embedding(Stream<Space>& stream, const DecodeRows<Space>& rows,
                      Matrix<const std::int32_t, Space> tokens, Matrix<const T, Space> table,
                      Matrix<const T, Space> positions, Matrix<T, Space> output,
                      Vector<std::int32_t, Space> live);

/// first[s] += count[s]: what makes the next replay go on where this one ended. Both [sequences]. May be captured.
template <class Space>
void advance_positions(Stream<Space>& stream, Vector<const std::int32_t, Space> count,
                       Vector<std::int32_t, Space> first);

}  // namespace encore::kernels
