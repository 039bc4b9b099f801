// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

struct CUstream_st;

namespace encore::backend::impl {

/// Rows of an operand in memory, `stride` elements apart.
struct CutlassMatrix {
  const void* data;
  std::int64_t rows, columns, stride;
};

/// A grouped product of bfloat16 operands on Hopper's matrix units: result[g] = first[g] * second[g], where the rows
/// of each group lie in device memory. All pointers are to device memory.
struct CutlassGroupedProduct {
  const std::int32_t* begins;
  const std::int32_t* ends;
  std::int32_t groups;
  std::int32_t m, n, k;         ///< the two that the groups share; the third is a group's number of rows
  CutlassMatrix first, second;  ///< those of all groups, one behind the other
  void* result;
  std::int64_t result_stride;
  const void* bias;  ///< [groups, n] bfloat16, or null
  bool accumulate;   ///< added to the result, else written
  int multiprocessors;
  bool programmatic;  ///< may begin before the kernel before is quite over
  CUstream_st* stream;
};

/// Groups that a kernel has room for.
inline constexpr std::int64_t cutlass_most_groups = 1024;

/// A kernel: what half a thread block computes at a time.
struct CutlassTile {
  const char* name;
  int rows, columns;  ///< of a tile
  bool pairs;         ///< of blocks share what they load
  /// Loads it, which may not happen in a capture. Throws DeviceError.
  void (*load)();
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
