// SPDX-License-Identifier: Apache-2.0
#include "tensor_maps_cutlass.hpp"

#include <encore/backend/error.hpp>

#include <cuda_runtime.h>

#include <string>

namespace encore::backend::impl {

namespace {

constexpr std::uint64_t element_bytes = 2;

/// The driver's function, found at run time: nothing links against the driver.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                                cudaEnableDefault, &result);
#else
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess)
      throw DeviceError(
          "this driver cannot describe tensors for the TMA: what uses it needs CUDA 12 or later");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

template <int Rank>
CUtensorMap encode(const void* data, const std::uint64_t (&extents)[Rank],
                   const std::uint64_t (&strides)[Rank - 1], const std::uint32_t (&box)[Rank]) {
  std::uint32_t steps[Rank];
  for (std::uint32_t& one : steps) one = 1;
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, Rank, const_cast<void*>(data), extents, strides, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw DeviceError("an operand cannot be described for the TMA: the driver says " +
                      std::to_string(static_cast<int>(result)));
  return map;
}

}  // namespace

CUtensorMap map_of_rows(const CutlassMatrix& matrix) {
  return encode<2>(matrix.data,
                   {static_cast<std::uint64_t>(matrix.columns), static_cast<std::uint64_t>(matrix.rows)},
                   {static_cast<std::uint64_t>(matrix.stride) * element_bytes}, {64, 64});
}

CUtensorMap map_of_matrices(const CutlassMatrix& matrix, std::int64_t count, int box_rows) {
  const auto row_bytes = static_cast<std::uint64_t>(matrix.stride) * element_bytes;
  const auto rows = static_cast<std::uint64_t>(matrix.rows);
  const std::uint64_t extents[3] = {static_cast<std::uint64_t>(matrix.columns), rows,
                                    static_cast<std::uint64_t>(count)};
  return encode<3>(matrix.data, extents, {row_bytes, row_bytes * rows},
                   {64, static_cast<std::uint32_t>(box_rows), 1});
}

CUtensorMap map_of_heads(const HeadsOperand<const bfloat16>& operand, const AttentionShape& shape,
                         std::int64_t heads) {
  const auto bytes = [](std::int64_t stride) { return static_cast<std::uint64_t>(stride) * element_bytes; };
  return encode<4>(operand.data,
                   {static_cast<std::uint64_t>(shape.head_dim), static_cast<std::uint64_t>(shape.tokens),
                    static_cast<std::uint64_t>(heads), static_cast<std::uint64_t>(shape.batch)},
                   {bytes(operand.token_stride), bytes(operand.head_stride), bytes(operand.batch_stride)},
                   {64, 64, 1, 1});
}

}  // namespace encore::backend::impl
