// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// output[i] = table[ids[i] - first_row] + positions[i % sequence]. The table has the rows of the vocabulary from first_row
/// on; those that it does not have count as zeros.
/// ids [tokens], each in [0, vocabulary) (checked where tokens enter the program, not here); table
/// [rows, hidden]; positions [>= sequence, hidden] or empty; output [tokens, hidden].
template <class Space, class T>
void embedding_forward(Stream<Space>& stream, Vector<const std::int32_t, Space> ids,
                       Matrix<const T, Space> table, Matrix<const T, Space> positions, std::int64_t sequence,
                       Matrix<T, Space> output, std::int64_t first_row = 0);

/// The stable permutation that sorts the ids: ids[order[0]] <= ids[order[1]] <= ..., equal ids by position.
/// ids and order [tokens], tokens < 2^31. Serves every embedding_backward of the same ids.
template <class Space>
void token_order(Stream<Space>& stream, Vector<const std::int32_t, Space> ids,
                 Vector<std::int32_t, Space> order);

/// Rows of the workspace of embedding_backward.
std::int64_t embedding_workspace_rows(std::int64_t tokens);

/// table_gradient[v - first_row] (+)= sum of output_gradient[i] over ids[i] == v, in order of i; rows of ids that do not
/// occur become zero unless `accumulate`. Ids whose rows the table does not have are left out.
/// order as token_order gives it; output_gradient [tokens, hidden]; table_gradient [rows, hidden];
/// workspace [embedding_workspace_rows(tokens), hidden].
template <class Space, class T, class G>
void embedding_backward(Stream<Space>& stream, Vector<const std::int32_t, Space> ids,
                        Vector<const std::int32_t, Space> order, Matrix<const T, Space> output_gradient,
                        Matrix<G, Space> table_gradient, Matrix<Accumulator<T>, Space> workspace,
                        bool accumulate, std::int64_t first_row = 0);

/// positions_gradient[p] (+)= sum of output_gradient[i] over i % sequence == p; rows >= sequence become zero
/// unless `accumulate`. output_gradient [tokens, hidden]; positions_gradient [>= sequence, hidden].
template <class Space, class T, class G>
void position_embedding_backward(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                                 std::int64_t sequence, Matrix<G, Space> positions_gradient, bool accumulate);

}  // namespace encore::kernels
