// SPDX-License-Identifier: Apache-2.0
#include "blas_portable.hpp"
#include "grouped_shapes.hpp"

#include <encore/backend/launch.hpp>

#include <algorithm>

namespace encore::backend {

namespace impl {

namespace {

/// How a result of `rows` x `columns` is cut; as for dense products tiles of 128 x 256 pack least for each sum, and
/// small results get smaller ones, so that there is work for every core.
struct GroupedTiling {
  std::int64_t rows, columns;  ///< of one tile
};

GroupedTiling grouped_tiling(std::int64_t groups, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t wanted_tiles = 48;
  constexpr std::int64_t smallest = 64;
  const auto count = [](std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; };
  GroupedTiling tiling{128, 256};
  while (tiling.rows > 16 && tiling.rows / 2 >= rows) tiling.rows /= 2;
  while (groups * count(rows, tiling.rows) * count(columns, tiling.columns) < wanted_tiles) {
    if (tiling.columns > smallest && tiling.columns >= tiling.rows)
      tiling.columns /= 2;
    else if (tiling.rows > smallest)
      tiling.rows /= 2;
    else
      break;
  }
  const std::int64_t across = count(columns, tiling.columns);
  tiling.columns = count(count(columns, across), 32) * 32;
  return tiling;
}

/// A tile of rows inside its group.
struct RowTile {
  std::int64_t group, begin, end;
};

/// The tile of rows that is the `part`-th of `parts` equal shares, of which many may be empty: tiles are spread evenly
/// over the shares, since each thread takes as many shares in a row. Without a tile the group is -1.
RowTile row_tile_of(const RowGroups& groups, std::int64_t tile_rows, std::int64_t part, std::int64_t parts) {
  std::int64_t tiles = 0;
  for (std::int64_t group = 0; group < groups.groups; ++group)
    tiles += (groups.ends[group] - groups.begins[group] + tile_rows - 1) / tile_rows;
  const std::int64_t tile = part * tiles / parts;
  if ((part + 1) * tiles / parts == tile) return {-1, 0, 0};
  std::int64_t first = 0;
  for (std::int64_t group = 0;; ++group) {
    const std::int64_t rows = groups.ends[group] - groups.begins[group];
    const std::int64_t after = first + (rows + tile_rows - 1) / tile_rows;
    if (tile < after) {
      const std::int64_t begin = (tile - first) * tile_rows;
      return {group, begin, std::min(begin + tile_rows, rows)};
    }
    first = after;
  }
}

template <class T>
struct HostRowsKernel {
  RowGroups groups;
  MatrixOperand<const T> input;
  MatrixOperand<T> result;
  const T* weights;
  const T* bias;
  bool transposed;
  GroupedTiling tiling;
  std::int64_t across, parts;

  void operator()(const HostTeam& team) const {
    const RowTile rows = row_tile_of(groups, tiling.rows, team.league_rank() / across, parts);
    if (rows.group < 0) return;
    const std::int64_t n = result.columns;
    const std::int64_t k = input.columns;
    const std::int64_t begin = groups.begins[rows.group];
    const std::int64_t column = team.league_rank() % across * tiling.columns;
    const HostProduct<T, T> product{input.data + begin * input.stride,
                                    weights + rows.group * n * k,
                                    result.data + begin * result.stride,
                                    nullptr,
                                    bias != nullptr ? bias + rows.group * n : nullptr,
                                    input.stride,
                                    transposed ? k : n,
                                    result.stride,
                                    0,
                                    groups.ends[rows.group] - begin,
                                    n,
                                    k,
                                    false,
                                    transposed,
                                    Accumulator<T>(1),
                                    Accumulator<T>(0)};
    portable_tile(product, {rows.begin, rows.end, column, std::min(column + tiling.columns, n)},
                  team.scratch<std::byte>());
  }
};

template <class T, class Result>
struct HostWeightsKernel {
  RowGroups groups;
  MatrixOperand<const T> first, second;
  Result* result;
  bool accumulate;
  GroupedTiling tiling;
  std::int64_t across, down;

  void operator()(const HostTeam& team) const {
    const std::int64_t group = team.league_rank() / (across * down);
    const std::int64_t tile = team.league_rank() % (across * down);
    const std::int64_t begin = groups.begins[group];
    const std::int64_t rows = groups.ends[group] - begin;
    if (accumulate && rows == 0) return;
    const std::int64_t m = first.columns;
    const std::int64_t n = second.columns;
    const std::int64_t row = tile / across * tiling.rows;
    const std::int64_t column = tile % across * tiling.columns;
    Result* destination = result + group * m * n;
    const HostProduct<T, Result> product{first.data + begin * first.stride,
                                         second.data + begin * second.stride,
                                         destination,
                                         accumulate ? destination : nullptr,
                                         nullptr,
                                         first.stride,
                                         second.stride,
                                         n,
                                         n,
                                         m,
                                         n,
                                         rows,
                                         true,
                                         false,
                                         Accumulator<T>(1),
                                         Accumulator<T>(1)};
    portable_tile(product,
                  {row, std::min(row + tiling.rows, m), column, std::min(column + tiling.columns, n)},
                  team.scratch<std::byte>());
  }
};

template <class T>
Access array_access(const T* data, std::int64_t count, bool writes) {
  if (data == nullptr) return {};
  const auto size = static_cast<std::size_t>(count);
  return writes ? write(data, size) : read(data, size);
}

}  // namespace

}  // namespace impl

template <class Space>
struct GroupedBlas<Space>::Implementation {};

template <class Space>
GroupedBlas<Space>::GroupedBlas(Stream<Space>&) {}

template <class Space>
GroupedBlas<Space>::~GroupedBlas() = default;

template <class Space>
template <class T>
void GroupedBlas<Space>::multiply_rows(Stream<Space>& stream, const char* label, const RowGroups& groups,
                                       MatrixOperand<const T> input, Transpose transpose_weights,
                                       const T* weights, MatrixOperand<T> result, const T* bias) {
  const auto [m, n, k] = impl::check_rows_product(label, groups, input, result);
  if (m == 0 || n == 0 || groups.groups == 0) return;
  const std::int64_t average = (m + groups.groups - 1) / groups.groups;
  const impl::GroupedTiling tiling = impl::grouped_tiling(groups.groups, average, n);
  const std::int64_t across = (n + tiling.columns - 1) / tiling.columns;
  const std::int64_t parts = impl::most_row_tiles(groups, tiling.rows);
  launch(stream, label,
         {impl::array_access(groups.begins, groups.groups, false),
          impl::array_access(groups.ends, groups.groups, false), impl::matrix_access(input, false),
          impl::array_access(weights, groups.groups * n * k, false),
          impl::array_access(bias, groups.groups * n, false), impl::matrix_access(result, true)},
         Teams<32>{parts * across, impl::portable_scratch_bytes<T>(tiling.rows, tiling.columns, k)},
         impl::HostRowsKernel<T>{groups, input, result, weights, bias, transpose_weights == Transpose::yes,
                                 tiling, across, parts});
  stream.note_flops(impl::flops_of({m, n, k}));
}

template <class Space>
template <class T, class Result>
void GroupedBlas<Space>::multiply_weights(Stream<Space>& stream, const char* label, const RowGroups& groups,
                                          MatrixOperand<const T> first, MatrixOperand<const T> second,
                                          Result* result, bool accumulate) {
  const auto [m, n, k] = impl::check_weights_product(label, groups, first, second);
  if (m == 0 || n == 0 || groups.groups == 0) return;
  const impl::GroupedTiling tiling = impl::grouped_tiling(groups.groups, m, n);
  const std::int64_t across = (n + tiling.columns - 1) / tiling.columns;
  const std::int64_t down = (m + tiling.rows - 1) / tiling.rows;
  launch(stream, label,
         {impl::array_access(groups.begins, groups.groups, false),
          impl::array_access(groups.ends, groups.groups, false), impl::matrix_access(first, false),
          impl::matrix_access(second, false), impl::array_access(result, groups.groups * m * n, true)},
         Teams<32>{groups.groups * across * down,
                   impl::portable_scratch_bytes<T>(tiling.rows, tiling.columns, k)},
         impl::HostWeightsKernel<T, Result>{groups, first, second, result, accumulate, tiling, across, down});
  stream.note_flops(impl::flops_of({m, n, k}));
}

template <class Space>
const char* GroupedBlas<Space>::description() const {
  return "portable host kernel";
}

template <class Space>
void GroupedBlas<Space>::force(GroupedBlasEngine engine) {
  if (engine != GroupedBlasEngine::portable)
    throw DeviceError(
        "grouped matrix products cannot be forced onto CUTLASS on a host: it needs a Hopper GPU");
}

template <class Space>
GroupedBlasEngine GroupedBlas<Space>::engine() const {
  return GroupedBlasEngine::portable;
}

template <class Space>
std::vector<std::string> GroupedBlas<Space>::tiles_of_rows() const {
  return {};
}

template <class Space>
std::vector<std::string> GroupedBlas<Space>::tiles_of_weights() const {
  return {};
}

template <class Space>
void GroupedBlas<Space>::force_tiles(int, int) {}

#define ENCORE_INSTANTIATE_ROWS(SPACE, T)                                                           \
  template void GroupedBlas<SPACE>::multiply_rows<T>(Stream<SPACE>&, const char*, const RowGroups&, \
                                                     MatrixOperand<const T>, Transpose, const T*,   \
                                                     MatrixOperand<T>, const T*);
#define ENCORE_INSTANTIATE_WEIGHTS(SPACE, T, RESULT)                                                      \
  template void GroupedBlas<SPACE>::multiply_weights<T, RESULT>(Stream<SPACE>&, const char*,              \
                                                                const RowGroups&, MatrixOperand<const T>, \
                                                                MatrixOperand<const T>, RESULT*, bool);
#define ENCORE_INSTANTIATE_TYPE(SPACE, T) \
  ENCORE_INSTANTIATE_ROWS(SPACE, T)       \
  ENCORE_INSTANTIATE_WEIGHTS(SPACE, T, T)
#define ENCORE_INSTANTIATE(SPACE)          \
  template class GroupedBlas<SPACE>;       \
  ENCORE_INSTANTIATE_TYPE(SPACE, float)    \
  ENCORE_INSTANTIATE_TYPE(SPACE, bfloat16) \
  ENCORE_INSTANTIATE_WEIGHTS(SPACE, bfloat16, float)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial))
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE_TYPE(Kokkos::Serial, double))
ENCORE_IF_OPENMP(ENCORE_INSTANTIATE(Kokkos::OpenMP))
#undef ENCORE_INSTANTIATE
#undef ENCORE_INSTANTIATE_TYPE
#undef ENCORE_INSTANTIATE_WEIGHTS
#undef ENCORE_INSTANTIATE_ROWS

}  // namespace encore::backend
