// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grouped_cutlass.hpp"

#include <encore/backend/error.hpp>

#include <cutlass/cutlass.h>

#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include <string>
#include <type_traits>

namespace encore::backend::impl {

/// What CUTLASS asks about the sizes of the groups, answered from their bounds on the device.
template <bool RowsAreK>
struct GroupExtents {
  using UnderlyingProblemShape = cute::Shape<int, int, int>;

  const std::int32_t* begins;
  const std::int32_t* ends;
  std::int32_t count;
  std::int32_t m, n, k;

  CUTLASS_HOST_DEVICE std::int32_t groups() const { return count; }
  CUTLASS_HOST_DEVICE UnderlyingProblemShape get_problem_shape(std::int32_t group) const {
    const int rows = ends[group] - begins[group];
    // Without rows there must be no tile: a tensor map cannot have an extent of 0.
    if constexpr (RowsAreK)
      return {rows > 0 ? m : 0, n, rows};
    else
      return {rows, n, k};
  }
  CUTLASS_HOST_DEVICE UnderlyingProblemShape get_host_problem_shape(std::int32_t) const { return {}; }
  CUTLASS_HOST_DEVICE bool is_host_problem_shape_available() const { return false; }
};

/// Cooperative: two warp groups share a tile. Otherwise each has its own, and one stores while the other computes.
template <int M, int N, int K, int ClusterM, int ClusterN, bool Cooperative>
struct CutlassTileShape {
  using Block = cute::Shape<cute::Int<M>, cute::Int<N>, cute::Int<K>>;
  using Cluster = cute::Shape<cute::Int<ClusterM>, cute::Int<ClusterN>, cute::_1>;
  using Mainloop = std::conditional_t<Cooperative, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative,
                                      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong>;
  using Epilogue = std::conditional_t<Cooperative, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
                                      cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;
};

namespace fusion = cutlass::epilogue::fusion;
inline constexpr auto cutlass_rounding = cutlass::FloatRoundStyle::round_to_nearest;

/// bias of the column + sum
template <class Tile>
struct BiasEpilogue {
  using Result = cutlass::bfloat16_t;
  using Addend = void;
  using Bias = fusion::Sm90RowBroadcast<0, typename Tile::Block, Result, float,
                                        cute::Stride<cute::_0, cute::_1, std::int64_t>>;
  using Callbacks = fusion::Sm90EVT<fusion::Sm90Compute<cutlass::plus, Result, float, cutlass_rounding>, Bias,
                                    fusion::Sm90AccFetch>;

  static typename Callbacks::Arguments arguments(const CutlassGroupedProduct& product) {
    return {{static_cast<const Result*>(product.bias), Result(0), {{}, {}, product.n}}, {}, {}};
  }
};

/// beta * result + sum; the result is not read when beta is 0
template <class Element>
struct AddingEpilogue {
  using Result = Element;
  using Addend = Element;
  using Callbacks =
      fusion::Sm90EVT<fusion::Sm90Compute<cutlass::homogeneous_multiply_add, Result, float, cutlass_rounding>,
                      fusion::Sm90ScalarBroadcast<float>, fusion::Sm90SrcFetch<Addend>, fusion::Sm90AccFetch>;

  static typename Callbacks::Arguments arguments(const CutlassGroupedProduct& product) {
    return {{{product.beta}}, {}, {}, {}};
  }
};

/// One kernel. The layouts are those of first [m, k] and of second [k, n].
template <class Tile, bool RowsAreK, class FirstLayout, class SecondLayout, class Epilogue>
struct CutlassGemm {
  using Operand = cutlass::bfloat16_t;
  using Result = typename Epilogue::Result;
  using RowMajor = cutlass::layout::RowMajor;
  static constexpr int operand_alignment = 16 / sizeof(Operand);
  static constexpr int result_alignment = 16 / sizeof(Result);

  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Tile::Block, typename Tile::Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, typename Epilogue::Addend, RowMajor*,
      result_alignment, Result, RowMajor*, result_alignment, typename Tile::Epilogue,
      typename Epilogue::Callbacks>::CollectiveOp;
  static constexpr int epilogue_bytes = sizeof(typename CollectiveEpilogue::SharedStorage);
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Operand, FirstLayout*, operand_alignment, Operand,
      SecondLayout*, operand_alignment, float, typename Tile::Block, typename Tile::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<epilogue_bytes>,
      typename Tile::Mainloop>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<GroupExtents<RowsAreK>, CollectiveMainloop, CollectiveEpilogue>;
  using Adapter = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  static_assert(Kernel::SharedStorageSize <= 227 * 1024);

  /// CUTLASS' strides have one dynamic part and lie in memory like it.
  template <class Stride>
  static Stride strides(std::int64_t* values) {
    static_assert(sizeof(std::remove_pointer_t<Stride>) == sizeof(std::int64_t));
    return reinterpret_cast<Stride>(values);
  }

  static typename Kernel::Arguments arguments(const CutlassGroupedProduct& product) {
    typename Kernel::Arguments all;
    all.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    all.problem_shape = {product.begins, product.ends, product.groups, product.m, product.n, product.k};
    all.mainloop.ptr_A = reinterpret_cast<const Operand**>(product.firsts);
    all.mainloop.dA = strides<typename Kernel::StrideA>(product.first_strides);
    all.mainloop.ptr_B = reinterpret_cast<const Operand**>(product.seconds);
    all.mainloop.dB = strides<typename Kernel::StrideB>(product.second_strides);
    all.epilogue.thread = Epilogue::arguments(product);
    if constexpr (!std::is_void_v<typename Epilogue::Addend>)
      all.epilogue.ptr_C = const_cast<const Result**>(reinterpret_cast<Result**>(product.results));
    all.epilogue.dC = strides<typename Kernel::StrideC>(product.result_strides);
    all.epilogue.ptr_D = reinterpret_cast<Result**>(product.results);
    all.epilogue.dD = strides<typename Kernel::StrideD>(product.result_strides);
    all.hw_info.sm_count = product.multiprocessors;
    return all;
  }

  static void run(const CutlassGroupedProduct& product) {
    Adapter adapter;
    cutlass::Status status = adapter.initialize(arguments(product), product.tensor_maps, product.stream);
    if (status == cutlass::Status::kSuccess) status = adapter.run(product.stream);
    if (status != cutlass::Status::kSuccess)
      throw DeviceError(std::string("a grouped matrix product did not start: CUTLASS says ") +
                        cutlass::cutlassGetStatusString(status) + ", CUDA " +
                        cudaGetErrorString(cudaGetLastError()));
  }
};

template <class Tile, class WeightsLayout>
using CutlassRowsGemm =
    CutlassGemm<Tile, false, cutlass::layout::RowMajor, WeightsLayout, BiasEpilogue<Tile>>;
template <class Tile, class Result>
using CutlassWeightsGemm =
    CutlassGemm<Tile, true, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, AddingEpilogue<Result>>;

// Of the kernels that were measured on an H200, those that were fastest somewhere: at 128 experts of 256 rows, hidden
// 2048 and ffn 768, and at 16 experts of 64 rows, hidden 512 and ffn 1024.
using SmallRowsTile = CutlassTileShape<64, 128, 64, 1, 1, false>;
using LargeRowsTile = CutlassTileShape<128, 192, 64, 1, 1, false>;
// Blocks of a cluster share the operand that is the same for both.
using WeightsTile = CutlassTileShape<128, 256, 64, 2, 1, true>;

template <class WeightsLayout>
const std::vector<CutlassTile>& cutlass_rows_tiles() {
  static const std::vector<CutlassTile> tiles{
      {"64x128 ping-pong", 64, 128, &CutlassRowsGemm<SmallRowsTile, WeightsLayout>::run},
      {"128x192 ping-pong", 128, 192, &CutlassRowsGemm<LargeRowsTile, WeightsLayout>::run}};
  return tiles;
}

template <class Result>
const std::vector<CutlassTile>& cutlass_weights_tiles() {
  static const std::vector<CutlassTile> tiles{
      {"128x256 cooperative, cluster 2x1", 128, 256, &CutlassWeightsGemm<WeightsTile, Result>::run}};
  return tiles;
}

}  // namespace encore::backend::impl
