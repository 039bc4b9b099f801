// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

struct CUstream_st;

namespace encore::backend::impl {

/// A grouped product of bfloat16 operands as CUTLASS takes it: result[g] = first[g] * second[g], where the number of
/// rows of each group lies in device memory. All pointers are to device memory.
struct CutlassGroupedProduct {
  const std::int32_t* begins;
  const std::int32_t* ends;
  std::int32_t groups;
  std::int32_t m, n, k;  ///< the two that the groups share; the third is a group's number of rows

  /// One of each for every group, written by a kernel that goes before. A stride is that between rows in memory.
  const void** firsts;
  const void** seconds;
  void** results;
  std::int64_t* first_strides;
  std::int64_t* second_strides;
  std::int64_t* result_strides;

  const void* bias;   ///< [groups, n] bfloat16, or null
  float beta;         ///< 1: added to the result, 0: written
  void* tensor_maps;  ///< cutlass_tensor_map_bytes, aligned to 128
  int multiprocessors;
  CUstream_st* stream;
};

std::size_t cutlass_tensor_map_bytes(int multiprocessors);

/// A kernel: what a thread block computes at a time, the cluster of blocks that share what they load, the schedule.
struct CutlassTile {
  const char* name;
  int rows, columns;  ///< of a tile
  /// Throws DeviceError when the kernel does not start. Neither allocates nor synchronises; may be captured.
  void (*run)(const CutlassGroupedProduct& product);
};

/// Rows [m = rows, k] times weights [n, k] or [k, n], which gives bfloat16 rows [m, n]. From small to large tiles.
const std::vector<CutlassTile>& cutlass_tiles_of_rows_by_transposed();
const std::vector<CutlassTile>& cutlass_tiles_of_rows_by_weights();
/// Transposed rows [k = rows, m] times rows [k, n], which gives weights [m, n].
const std::vector<CutlassTile>& cutlass_tiles_of_weights_bfloat16();
const std::vector<CutlassTile>& cutlass_tiles_of_weights_float();

}  // namespace encore::backend::impl
