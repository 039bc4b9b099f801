// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// *count = number of labels >= 0; negative labels are ignored positions. labels [tokens]; count on the
/// device.
template <class Space>
void count_labels(Stream<Space>& stream, Vector<const std::int32_t, Space> labels, double* count);

/// row_loss[i] = log(sum over v of exp(logits[i, v])) - logits[i, labels[i]], 0 for an ignored row. With
/// `write_gradient` the logits become the gradient of the mean loss, (softmax - one-hot) / *label_count, zero
/// in ignored rows and where the count is zero; without it they stay.
/// logits [tokens, vocabulary]; labels [tokens], each < vocabulary; row_loss [tokens]; label_count on the
/// device. The logits are read twice at most, written once, and never copied.
template <class Space, class T>
void cross_entropy(Stream<Space>& stream, Matrix<T, Space> logits, Vector<const std::int32_t, Space> labels,
                   const double* label_count, Vector<Accumulator<T>, Space> row_loss, bool write_gradient);

/// Numbers that cross_entropy_part tells of a row: its maximum, the sum of exp(logit - maximum), and the label's logit
/// where it is in the part, else 0.
inline constexpr std::int64_t part_statistics = 3;

/// First half of the cross-entropy of logits of which there is a part, columns [first, first + part) of the vocabulary:
/// what has to be known of each part. Rows that are ignored have no meaning.
/// logits [tokens, part]; labels [tokens], of the whole vocabulary; statistics [tokens, part_statistics].
template <class Space, class T>
void cross_entropy_part(Stream<Space>& stream, Matrix<const T, Space> logits,
                        Vector<const std::int32_t, Space> labels, std::int64_t first,
                        Matrix<Accumulator<T>, Space> statistics);

/// Second half: as cross_entropy, from the statistics of all parts, [parts * tokens, part_statistics], one part after
/// the other in any order.
template <class Space, class T>
void cross_entropy_of_parts(Stream<Space>& stream, Matrix<T, Space> logits,
                            Vector<const std::int32_t, Space> labels, std::int64_t first,
                            Matrix<const Accumulator<T>, Space> statistics, const double* label_count,
                            Vector<Accumulator<T>, Space> row_loss, bool write_gradient);

/// *loss (+)= sum of row_loss / *label_count, 0 where the count is zero. row_loss [tokens], A = float or
/// double; label_count and loss on the device.
template <class Space, class A>
void reduce_loss(Stream<Space>& stream, Vector<const A, Space> row_loss, const double* label_count,
                 double* loss, bool accumulate);

}  // namespace encore::kernels
