// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grouped_gemm_cutlass.hpp"
#include "tensor_maps_cutlass.hpp"

#include <encore/backend/error.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <string>

namespace encore::backend::impl {

template <class Kernel>
void load_grouped() {
  const cudaError_t status =
      cudaFuncSetAttribute(&run_grouped<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           Kernel::shared_bytes(cutlass_most_groups));
  if (status != cudaSuccess)
    throw DeviceError(std::string("a grouped matrix product cannot be loaded: ") +
                      cudaGetErrorString(status));
}

template <class Kernel>
void launch_grouped(const CutlassGroupedProduct& product) {
  GroupedArguments arguments{};
  arguments.first = map_of_rows(product.first);
  arguments.second = Kernel::of_weights ? map_of_rows(product.second)
                                        : map_of_matrices(product.second, product.groups,
                                                          Kernel::second_major == hopper::Major::K
                                                              ? Kernel::second_bytes / hopper::row_bytes
                                                              : hopper::box_rows);
  arguments.begins = product.begins;
  arguments.ends = product.ends;
  arguments.groups = product.groups;
  arguments.m = product.m;
  arguments.n = product.n;
  arguments.k = product.k;
  arguments.result = product.result;
  arguments.result_stride = product.result_stride;
  arguments.bias = static_cast<const __nv_bfloat16*>(product.bias);
  arguments.accumulate = product.accumulate;

  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = Kernel::block_count;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim =
      dim3(static_cast<unsigned>(product.multiprocessors / Kernel::block_count * Kernel::block_count));
  launch.blockDim = dim3(Kernel::threads);
  launch.dynamicSmemBytes = static_cast<std::size_t>(Kernel::shared_bytes(product.groups));
  launch.stream = product.stream;
  launch.attrs = attributes;
  launch.numAttrs = product.programmatic ? 2 : 1;
  const cudaError_t status = cudaLaunchKernelEx(&launch, &run_grouped<Kernel>, arguments);
  if (status != cudaSuccess)
    throw DeviceError(std::string("a grouped matrix product did not start: ") + cudaGetErrorString(status));
}

template <GroupedKind kind, int N, class Result, int blocks>
CutlassTile grouped_tile(const char* name) {
  using Kernel = GroupedKernel<kind, N, Result, blocks>;
  return {name, Kernel::rows_of_tile, N, blocks == 2, &load_grouped<Kernel>, &launch_grouped<Kernel>};
}

template <GroupedKind kind>
const std::vector<CutlassTile>& grouped_tiles_of_rows() {
  static const std::vector<CutlassTile> tiles{grouped_tile<kind, 64, __nv_bfloat16, 1>("128x64"),
                                              grouped_tile<kind, 128, __nv_bfloat16, 1>("128x128"),
                                              grouped_tile<kind, 192, __nv_bfloat16, 1>("128x192"),
                                              grouped_tile<kind, 128, __nv_bfloat16, 2>("128x128 pairs")};
  return tiles;
}

template <class Result>
const std::vector<CutlassTile>& grouped_tiles_of_weights() {
  constexpr GroupedKind kind = GroupedKind::weights;
  static const std::vector<CutlassTile> tiles{grouped_tile<kind, 128, Result, 1>("128x128"),
                                              grouped_tile<kind, 192, Result, 1>("128x192"),
                                              grouped_tile<kind, 128, Result, 2>("128x128 pairs")};
  return tiles;
}

}  // namespace encore::backend::impl
