// SPDX-License-Identifier: Apache-2.0
#include "grouped_cutlass.hpp"
#include "grouped_kernels_cuda.hpp"
#include "grouped_setup_cuda.hpp"
#include "load_by_capture_cuda.hpp"

#include <encore/backend/blas_workspace.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_resource.hpp>

#include <algorithm>

namespace encore::backend {

namespace impl {

namespace {

/// For tensor maps (under 100 KiB) and 48 bytes a group: enough for 16,000 groups.
constexpr std::size_t grouped_workspace_bytes = std::size_t(1) << 20;

template <class T>
bool aligned_to_packets(const T* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
         stride * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
}

template <class T>
GroupedOperand operand_by_rows(const MatrixOperand<T>& matrix) {
  return {reinterpret_cast<const std::byte*>(matrix.data), matrix.stride * std::int64_t(sizeof(T)), 0,
          matrix.stride};
}

template <class T>
GroupedOperand operand_by_groups(const T* data, std::int64_t elements, std::int64_t stride) {
  return {reinterpret_cast<const std::byte*>(data), 0, elements * std::int64_t(sizeof(T)), stride};
}

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
  Allocation<Space> workspace;
  std::vector<const impl::CutlassTile*> loaded;  ///< tiles whose code is on the device

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

  /// Groups for which the workspace has room.
  std::int64_t most_groups() const {
    const std::size_t maps = impl::cutlass_tensor_map_bytes(multiprocessors);
    return static_cast<std::int64_t>((impl::grouped_workspace_bytes - maps) /
                                     (impl::GroupedSetup::operands * (sizeof(void*) + sizeof(std::int64_t))));
  }

  /// The largest tile that gives every multiprocessor one if groups are alike, and that such a group fills.
  static const impl::CutlassTile& choose(const Tiles& tiles, int forced, std::int64_t groups,
                                         std::int64_t rows, std::int64_t columns,
                                         std::int64_t multiprocessors) {
    if (forced >= 0) return tiles[std::min<std::size_t>(forced, tiles.size() - 1)];
    const auto count = [](std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; };
    for (auto tile = tiles.rbegin(); tile != tiles.rend(); ++tile) {
      const bool is_filled = rows > tile->rows / 2;
      if (is_filled && groups * count(rows, tile->rows) * count(columns, tile->columns) >= multiprocessors)
        return *tile;
    }
    return tiles.front();
  }

  void run(Stream<Space>& stream, const char* label, const impl::CutlassTile& tile,
           impl::CutlassGroupedProduct product, impl::GroupedSetup setup) {
    if (stream.mode() == StreamMode::list) {
      stream.note_launch(label);
      return stream.note_launch(label);
    }
    if (workspace.bytes() == 0) {
      if (stream.mode() == StreamMode::record)
        throw CaptureError("the first grouped product of this device, '" + std::string(label) +
                           "', is inside a recording: run or prime it once before");
      workspace = Allocation<Space>("grouped product workspace", impl::grouped_workspace_bytes);
    }
    std::byte* place = workspace.data() + impl::cutlass_tensor_map_bytes(multiprocessors);
    for (int i = 0; i < impl::GroupedSetup::operands; ++i) {
      setup.pointers[i] = reinterpret_cast<const void**>(place);
      place += setup.groups.groups * sizeof(void*);
      setup.strides[i] = reinterpret_cast<std::int64_t*>(place);
      place += setup.groups.groups * sizeof(std::int64_t);
    }
    launch(stream, label, {}, Range{setup.items()}, setup);

    product.begins = setup.groups.begins;
    product.ends = setup.groups.ends;
    product.groups = static_cast<std::int32_t>(setup.groups.groups);
    product.firsts = setup.pointers[0];
    product.seconds = setup.pointers[1];
    product.results = const_cast<void**>(setup.pointers[2]);
    product.first_strides = setup.strides[0];
    product.second_strides = setup.strides[1];
    product.result_strides = setup.strides[2];
    product.tensor_maps = workspace.data();
    product.multiprocessors = multiprocessors;
    product.stream = stream.execution_space().cuda_stream();
    const auto call = [&] { tile.run(product); };
    const bool is_loaded = std::find(loaded.begin(), loaded.end(), &tile) != loaded.end();
    if (!is_loaded) loaded.push_back(&tile);
    if (!is_loaded && stream.mode() == StreamMode::prime) impl::load_by_capture(product.stream, label, call);
    launch_native(stream, label, {}, call);
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
    return engine == GroupedBlasEngine::cutlass && groups.groups <= most_groups() && shape.m <= most &&
           shape.n <= most && shape.k <= most && shape.k > 0;
  }

  bool multiply_rows(Stream<Space>& stream, const char* label, const RowGroups& groups,
                     const impl::GroupedShape& shape, MatrixOperand<const bfloat16> input, bool transposed,
                     const bfloat16* weights, MatrixOperand<bfloat16> result, const bfloat16* bias) {
    const std::int64_t weights_stride = transposed ? shape.k : shape.n;
    if (!takes(groups, shape) || !impl::aligned_to_packets(input.data, input.stride) ||
        !impl::aligned_to_packets(weights, weights_stride) ||
        !impl::aligned_to_packets(result.data, result.stride))
      return false;
    impl::GroupedSetup setup{};
    setup.groups = groups;
    setup.operand[0] = impl::operand_by_rows(input);
    setup.operand[1] = impl::operand_by_groups(weights, shape.n * shape.k, weights_stride);
    setup.operand[2] = impl::operand_by_rows(result);
    impl::CutlassGroupedProduct product{};
    product.n = static_cast<std::int32_t>(shape.n);
    product.k = static_cast<std::int32_t>(shape.k);
    product.bias = bias;
    const impl::CutlassTile& tile = choose(rows_tiles(transposed), rows_tile, groups.groups,
                                           groups.rows / groups.groups, shape.n, multiprocessors);
    run(stream, label, tile, product, setup);
    return true;
  }

  template <class Result>
  bool multiply_weights(Stream<Space>& stream, const char* label, const RowGroups& groups,
                        const impl::GroupedShape& shape, MatrixOperand<const bfloat16> first,
                        MatrixOperand<const bfloat16> second, Result* result, bool accumulate) {
    if (!takes(groups, shape) || !impl::aligned_to_packets(first.data, first.stride) ||
        !impl::aligned_to_packets(second.data, second.stride) || !impl::aligned_to_packets(result, shape.n))
      return false;
    impl::GroupedSetup setup{};
    setup.groups = groups;
    setup.operand[0] = impl::operand_by_rows(first);
    setup.operand[1] = impl::operand_by_rows(second);
    setup.operand[2] = impl::operand_by_groups(result, shape.m * shape.n, shape.n);
    setup.results = reinterpret_cast<std::byte*>(result);
    setup.zero_packets = accumulate ? 0 : shape.m * shape.n * std::int64_t(sizeof(Result)) / 16;
    impl::CutlassGroupedProduct product{};
    product.m = static_cast<std::int32_t>(shape.m);
    product.n = static_cast<std::int32_t>(shape.n);
    product.beta = accumulate ? 1.0F : 0.0F;
    const impl::CutlassTile& tile =
        choose(weights_tiles<Result>(), weights_tile, groups.groups, shape.m, shape.n, multiprocessors);
    run(stream, label, tile, product, setup);
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
#if ENCORE_HAVE_CUTLASS
  if constexpr (std::is_same_v<T, bfloat16>) {
    keep_for_recording(stream, implementation_);
    if (implementation_->multiply_rows(stream, label, groups, shape, input, transposed, weights, result,
                                       bias))
      return;
  }
#endif
  const std::int64_t across = (shape.n + impl::grouped_tile - 1) / impl::grouped_tile;
  launch(stream, label, {},
         Teams<impl::grouped_threads>{impl::most_row_tiles(groups, impl::grouped_tile) * across,
                                      impl::grouped_scratch_bytes},
         impl::CudaRowsKernel<T>{groups, input, result, weights, bias, transposed, across});
}

template <class Space>
template <class T, class Result>
void GroupedBlas<Space>::multiply_weights(Stream<Space>& stream, const char* label, const RowGroups& groups,
                                          MatrixOperand<const T> first, MatrixOperand<const T> second,
                                          Result* result, bool accumulate) {
  const impl::GroupedShape shape = impl::check_weights_product(label, groups, first, second);
  if (shape.m == 0 || shape.n == 0 || groups.groups == 0) return;
#if ENCORE_HAVE_CUTLASS
  if constexpr (std::is_same_v<T, bfloat16>) {
    keep_for_recording(stream, implementation_);
    if (implementation_->multiply_weights(stream, label, groups, shape, first, second, result, accumulate))
      return;
  }
#endif
  const std::int64_t across = (shape.n + impl::grouped_tile - 1) / impl::grouped_tile;
  const std::int64_t down = (shape.m + impl::grouped_tile - 1) / impl::grouped_tile;
  launch(stream, label, {},
         Teams<impl::grouped_threads>{groups.groups * across * down, impl::grouped_scratch_bytes},
         impl::CudaWeightsKernel<T, Result>{groups, first, second, result, accumulate, across, down});
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

template <class Space>
std::size_t grouped_blas_workspace_bytes() {
  return ENCORE_HAVE_CUTLASS ? impl::grouped_workspace_bytes : 0;
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
template std::size_t grouped_blas_workspace_bytes<Kokkos::Cuda>();
ENCORE_INSTANTIATE_ROWS(float)
ENCORE_INSTANTIATE_ROWS(bfloat16)
ENCORE_INSTANTIATE_WEIGHTS(float, float)
ENCORE_INSTANTIATE_WEIGHTS(bfloat16, bfloat16)
ENCORE_INSTANTIATE_WEIGHTS(bfloat16, float)
#undef ENCORE_INSTANTIATE_ROWS
#undef ENCORE_INSTANTIATE_WEIGHTS

}  // namespace encore::backend
