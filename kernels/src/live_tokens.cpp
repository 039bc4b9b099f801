// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/launch.hpp>
#include <encore/kernels/live_tokens.hpp>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

struct LiveTokens {
  const std::int32_t* labels;
  std::int32_t* live;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const { live[i] = labels[i] == padding_label ? 0 : 1; }
};

struct CompareRows {
  const std::int32_t* needed;
  std::int64_t count;
  std::int64_t rows;
  double* result;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t* from = needed;
    const auto largest =
        team.template max_over<std::int32_t>(count, 0, [=](std::int64_t i) { return from[i]; });
    if (team.rank() != 0) return;
    result[0] = largest;
    result[1] = largest > rows ? 1.0 : 0.0;
  }
};

}  // namespace

template <class Space>
void live_tokens(Stream<Space>& stream, Vector<const std::int32_t, Space> labels,
                 Vector<std::int32_t, Space> live) {
  const auto tokens = static_cast<std::int64_t>(labels.size());
  impl::require_shape(impl::is_vector(live, tokens), "live_tokens: labels and live must be [tokens]");
  launch(stream, "live_tokens", {backend::read(labels.data(), tokens), backend::write(live.data(), tokens)},
         backend::Range{tokens}, LiveTokens{labels.data(), live.data()});
}

template <class Space>
void compare_rows(Stream<Space>& stream, Vector<const std::int32_t, Space> rows_needed, std::int64_t rows,
                  Vector<double, Space> largest_and_excess) {
  const auto count = static_cast<std::int64_t>(rows_needed.size());
  impl::require_shape(count > 0 && impl::is_vector(largest_and_excess, 2),
                      "compare_rows: rows_needed must not be empty and largest_and_excess [2]");
  launch(stream, "compare_rows",
         {backend::read(rows_needed.data(), count), backend::write(largest_and_excess.data(), 2)},
         backend::Teams<128>{1}, CompareRows{rows_needed.data(), count, rows, largest_and_excess.data()});
}

#define ENCORE_INSTANTIATE(SPACE)                                                                    \
  template void live_tokens<SPACE>(Stream<SPACE>&, Vector<const std::int32_t, SPACE>,                \
                                   Vector<std::int32_t, SPACE>);                                     \
  template void compare_rows<SPACE>(Stream<SPACE>&, Vector<const std::int32_t, SPACE>, std::int64_t, \
                                    Vector<double, SPACE>);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
