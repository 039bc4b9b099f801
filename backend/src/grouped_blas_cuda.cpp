// SPDX-License-Identifier: Apache-2.0
#include "grouped_cutlass.hpp"
#include "grouped_kernels_cuda.hpp"

#include <encore/backend/packet.hpp>

#include <algorithm>

namespace encore::backend {

namespace impl {

namespace {

template <class T>
bool aligned_to_packets(const T* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
         stride * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
}

template <class T>
Access span_of(const MatrixOperand<T>& matrix) {
  const std::int64_t elements = matrix.rows == 0 ? 0 : (matrix.rows - 1) * matrix.stride + matrix.columns;
  Access access = read(matrix.data, static_cast<std::size_t>(elements));
  access.writes = !std::is_const_v<T>;
  return access;
}

/// What a product touches and computes.
struct GroupedWork {
  Accesses accesses;
  double flops;
};

}  // namespace

}  // namespace impl

template <class Space>
struct GroupedBlas<Space>::Implementation {
  using Tiles = std::vector<impl::CutlassTile>;

  GroupedBlasEngine engine = GroupedBlasEngine::portable;
  std::string reason =
      "Encore was built without it (ENCORE_ENABLE_CUTLASS)";  ///< empty: CUTLASS is available
  std::string description = "portable CUDA kernel";
  int rows_tile = -1;
  int weights_tile = -1;

#if ENCORE_HAVE_CUTLASS
  int multiprocessors = 0;
  bool is_loaded = false;  ///< whether the code of all tiles is on the device

  Implementation() {
    int device = 0;
    int major = 0;
    int minor = 0;
    check_cuda(cudaGetDevice(&device), "asking for the device");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "asking for the device");
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
               "asking for the device");
    check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "asking for the device");
    reason.clear();
    if (major != 9 || minor != 0)
      reason =
          "it computes on Hopper (9.0) only, not on " + std::to_string(major) + "." + std::to_string(minor);
    if (!reason.empty()) return;
    engine = GroupedBlasEngine::cutlass;
    description = "CUTLASS " ENCORE_CUTLASS_VERSION;
  }

  /// With many tiles for each multiprocessor it counts how fast operands come: blocks share them. With few, what the
  /// last tile costs counts as much as the others. `rows` and `columns` are those of a group's result.
  static const impl::CutlassTile& choose(const Tiles& tiles, int forced, std::int64_t groups,
                                         std::int64_t rows, std::int64_t columns,
                                         std::int64_t multiprocessors) {
    if (forced >= 0) return tiles[std::min<std::size_t>(forced, tiles.size() - 1)];
    constexpr std::int64_t many = 16;
    constexpr std::int64_t columns_of_overhead = 32;  // What a tile's beginning and end cost, as measured.
    const auto count = [](std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; };
    const auto turns = [&](const impl::CutlassTile& tile) {
      return count(groups * count(rows, tile.rows) * count(columns, tile.columns), multiprocessors);
    };
    const impl::CutlassTile* best = nullptr;
    std::int64_t least = 0;
    for (const impl::CutlassTile& tile : tiles) {
      if (tile.pairs && turns(tile) >= many) return tile;
      const std::int64_t cost = turns(tile) * (tile.columns + columns_of_overhead);
      if (tile.pairs || (best != nullptr && cost >= least)) continue;
      best = &tile;
      least = cost;
    }
    return *best;
  }

  void load(const Stream<Space>& stream, const char* label) {
    if (is_loaded || stream.mode() == StreamMode::list) return;
    if (stream.mode() == StreamMode::record)
      throw CaptureError("the first grouped product of this device, '" + std::string(label) +
                         "', is inside a recording: run or prime it once before");
    for (const Tiles* tiles :
         {&rows_tiles(true), &rows_tiles(false), &weights_tiles<bfloat16>(), &weights_tiles<float>()})
      for (const impl::CutlassTile& tile : *tiles) tile.load();
    is_loaded = true;
  }

  void run(Stream<Space>& stream, const char* label, const impl::GroupedWork& work,
           const impl::CutlassTile& tile, const RowGroups& groups, impl::CutlassGroupedProduct product) {
    load(stream, label);
    stream.note_launch(label, work.accesses);
    stream.note_flops(work.flops);
    if (stream.runs_nothing()) return;
    const impl::NodeScope node(stream, label, work.accesses);
    product.begins = groups.begins;
    product.ends = groups.ends;
    product.groups = static_cast<std::int32_t>(groups.groups);
    product.multiprocessors = multiprocessors;
    product.programmatic = node.follows_kernel();
    product.stream = stream.execution_space().cuda_stream();
    tile.run(product);
  }

  static const Tiles& rows_tiles(bool transposed) {
    return transposed ? impl::cutlass_tiles_of_rows_by_transposed()
                      : impl::cutlass_tiles_of_rows_by_weights();
  }
  template <class Result>
  static const Tiles& weights_tiles() {
    if constexpr (std::is_same_v<Result, float>)
      return impl::cutlass_tiles_of_weights_float();
    else
      return impl::cutlass_tiles_of_weights_bfloat16();
  }

  bool takes(const RowGroups& groups, const impl::GroupedShape& shape) const {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    return engine == GroupedBlasEngine::cutlass && groups.groups <= impl::cutlass_most_groups &&
           shape.m <= most && shape.n <= most && shape.k <= most && shape.k > 0;
  }

  bool multiply_rows(Stream<Space>& stream, const char* label, const impl::GroupedWork& work,
                     const RowGroups& groups, const impl::GroupedShape& shape,
                     MatrixOperand<const bfloat16> input, bool transposed, const bfloat16* weights,
                     MatrixOperand<bfloat16> result, const bfloat16* bias) {
    const std::int64_t weights_stride = transposed ? shape.k : shape.n;
    if (!takes(groups, shape) || shape.n % packet_width<bfloat16> != 0 ||
        !impl::aligned_to_packets(input.data, input.stride) ||
        !impl::aligned_to_packets(weights, weights_stride) ||
        !impl::aligned_to_packets(result.data, result.stride))
      return false;
    impl::CutlassGroupedProduct product{};
    product.n = static_cast<std::int32_t>(shape.n);
    product.k = static_cast<std::int32_t>(shape.k);
    product.first = {input.data, input.rows, shape.k, input.stride};
    product.second = {weights, transposed ? shape.n : shape.k, weights_stride, weights_stride};
    product.result = result.data;
    product.result_stride = result.stride;
    product.bias = bias;
    const impl::CutlassTile& tile =
        choose(rows_tiles(transposed), rows_tile, groups.groups,
               (groups.rows + groups.groups - 1) / groups.groups, shape.n, multiprocessors);
    run(stream, label, work, tile, groups, product);
    return true;
  }

  template <class Result>
  bool multiply_weights(Stream<Space>& stream, const char* label, const impl::GroupedWork& work,
                        const RowGroups& groups, const impl::GroupedShape& shape,
                        MatrixOperand<const bfloat16> first, MatrixOperand<const bfloat16> second,
                        Result* result, bool accumulate) {
    if (!takes(groups, shape) || !impl::aligned_to_packets(first.data, first.stride) ||
        !impl::aligned_to_packets(second.data, second.stride) || !impl::aligned_to_packets(result, shape.n))
      return false;
    impl::CutlassGroupedProduct product{};
    product.m = static_cast<std::int32_t>(shape.m);
    product.n = static_cast<std::int32_t>(shape.n);
    product.first = {first.data, first.rows, shape.m, first.stride};
    product.second = {second.data, second.rows, shape.n, second.stride};
    product.result = result;
    product.result_stride = shape.n;
    product.accumulate = accumulate;
    const impl::CutlassTile& tile =
        choose(weights_tiles<Result>(), weights_tile, groups.groups, shape.m, shape.n, multiprocessors);
    run(stream, label, work, tile, groups, product);
    return true;
  }
#endif
};

template <class Space>
GroupedBlas<Space>::GroupedBlas(Stream<Space>&) : implementation_(std::make_shared<Implementation>()) {}

template <class Space>
GroupedBlas<Space>::~GroupedBlas() = default;

template <class Space>
template <class T>
void GroupedBlas<Space>::multiply_rows(Stream<Space>& stream, const char* label, const RowGroups& groups,
                                       MatrixOperand<const T> input, Transpose transpose_weights,
                                       const T* weights, MatrixOperand<T> result, const T* bias) {
  const impl::GroupedShape shape = impl::check_rows_product(label, groups, input, result);
  if (shape.m == 0 || shape.n == 0 || groups.groups == 0) return;
  const bool transposed = transpose_weights == Transpose::yes;
  const auto count = static_cast<std::size_t>(groups.groups), columns = static_cast<std::size_t>(shape.n);
  const Accesses accesses = {read(groups.begins, count),
                             read(groups.ends, count),
                             impl::span_of(input),
                             read(weights, count * columns * static_cast<std::size_t>(shape.k)),
                             read(bias, bias == nullptr ? 0 : count * columns),
                             impl::span_of(result)};
#if ENCORE_HAVE_CUTLASS
  if constexpr (std::is_same_v<T, bfloat16>) {
    const impl::GroupedWork work{accesses, impl::flops_of(shape)};
    if (implementation_->multiply_rows(stream, label, work, groups, shape, input, transposed, weights, result,
                                       bias))
      return;
  }
#endif
  const std::int64_t across = (shape.n + impl::grouped_tile - 1) / impl::grouped_tile;
  launch(stream, label, accesses,
         Teams<impl::grouped_threads>{impl::most_row_tiles(groups, impl::grouped_tile) * across,
                                      impl::grouped_scratch_bytes},
         impl::CudaRowsKernel<T>{groups, input, result, weights, bias, transposed, across});
  stream.note_flops(impl::flops_of(shape));
}

template <class Space>
template <class T, class Result>
void GroupedBlas<Space>::multiply_weights(Stream<Space>& stream, const char* label, const RowGroups& groups,
                                          MatrixOperand<const T> first, MatrixOperand<const T> second,
                                          Result* result, bool accumulate) {
  const impl::GroupedShape shape = impl::check_weights_product(label, groups, first, second);
  if (shape.m == 0 || shape.n == 0 || groups.groups == 0) return;
  const auto count = static_cast<std::size_t>(groups.groups);
  const Accesses accesses = {read(groups.begins, count), read(groups.ends, count), impl::span_of(first),
                             impl::span_of(second),
                             write(result, count * static_cast<std::size_t>(shape.m * shape.n))};
#if ENCORE_HAVE_CUTLASS
  if constexpr (std::is_same_v<T, bfloat16>) {
    const impl::GroupedWork work{accesses, impl::flops_of(shape)};
    if (implementation_->multiply_weights(stream, label, work, groups, shape, first, second, result,
                                          accumulate))
      return;
  }
#endif
  const std::int64_t across = (shape.n + impl::grouped_tile - 1) / impl::grouped_tile;
  const std::int64_t down = (shape.m + impl::grouped_tile - 1) / impl::grouped_tile;
  launch(stream, label, accesses,
         Teams<impl::grouped_threads>{groups.groups * across * down, impl::grouped_scratch_bytes},
         impl::CudaWeightsKernel<T, Result>{groups, first, second, result, accumulate, across, down});
  stream.note_flops(impl::flops_of(shape));
}

template <class Space>
const char* GroupedBlas<Space>::description() const {
  return engine() == GroupedBlasEngine::cutlass ? implementation_->description.c_str()
                                                : "portable CUDA kernel";
}

template <class Space>
void GroupedBlas<Space>::force(GroupedBlasEngine engine) {
  if (engine == GroupedBlasEngine::cutlass && !implementation_->reason.empty())
    throw DeviceError("grouped matrix products cannot be forced onto CUTLASS: " + implementation_->reason);
  implementation_->engine = engine;
}

template <class Space>
GroupedBlasEngine GroupedBlas<Space>::engine() const {
  return implementation_->engine;
}

template <class Space>
std::vector<std::string> GroupedBlas<Space>::tiles_of_rows() const {
  std::vector<std::string> names;
#if ENCORE_HAVE_CUTLASS
  if (implementation_->reason.empty())
    for (const impl::CutlassTile& tile : impl::cutlass_tiles_of_rows_by_transposed())
      names.emplace_back(tile.name);
#endif
  return names;
}

template <class Space>
std::vector<std::string> GroupedBlas<Space>::tiles_of_weights() const {
  std::vector<std::string> names;
#if ENCORE_HAVE_CUTLASS
  if (implementation_->reason.empty())
    for (const impl::CutlassTile& tile : impl::cutlass_tiles_of_weights_float())
      names.emplace_back(tile.name);
#endif
  return names;
}

template <class Space>
void GroupedBlas<Space>::force_tiles(int rows, int weights) {
  implementation_->rows_tile = rows;
  implementation_->weights_tile = weights;
}

#define ENCORE_INSTANTIATE_ROWS(T)                                                                       \
  template void GroupedBlas<Kokkos::Cuda>::multiply_rows<T>(                                             \
      Stream<Kokkos::Cuda>&, const char*, const RowGroups&, MatrixOperand<const T>, Transpose, const T*, \
      MatrixOperand<T>, const T*);
#define ENCORE_INSTANTIATE_WEIGHTS(T, RESULT)                                                               \
  template void GroupedBlas<Kokkos::Cuda>::multiply_weights<T, RESULT>(                                     \
      Stream<Kokkos::Cuda>&, const char*, const RowGroups&, MatrixOperand<const T>, MatrixOperand<const T>, \
      RESULT*, bool);
template class GroupedBlas<Kokkos::Cuda>;
ENCORE_INSTANTIATE_ROWS(float)
ENCORE_INSTANTIATE_ROWS(bfloat16)
ENCORE_INSTANTIATE_WEIGHTS(float, float)
ENCORE_INSTANTIATE_WEIGHTS(bfloat16, bfloat16)
ENCORE_INSTANTIATE_WEIGHTS(bfloat16, float)
#undef ENCORE_INSTANTIATE_ROWS
#undef ENCORE_INSTANTIATE_WEIGHTS

}  // namespace encore::backend
