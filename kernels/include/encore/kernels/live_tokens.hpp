// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

#include <limits>

namespace encore::kernels {

/// The label of a token that only fills a sequence up: it has no loss, as any negative label, and no expert.
inline constexpr std::int32_t padding_label = std::numeric_limits<std::int32_t>::min();

/// live[t] = 0 where labels[t] is padding_label, else 1. Both [tokens]. May be captured.
template <class Space>
void live_tokens(Stream<Space>& stream, Vector<const std::int32_t, Space> labels,
                 Vector<std::int32_t, Space> live);

/// largest_and_excess[0] = the largest of rows_needed, [1] = 1 if that is more than `rows`, else 0. Rows_needed [any
/// number > 0], of every dispatch of a step. May be captured.
template <class Space>
void compare_rows(Stream<Space>& stream, Vector<const std::int32_t, Space> rows_needed, std::int64_t rows,
                  Vector<double, Space> largest_and_excess);

}  // namespace encore::kernels
