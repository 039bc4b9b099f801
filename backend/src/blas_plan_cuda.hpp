// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace encore::backend::impl {

/// Throws DeviceError with cuBLAS' own words unless `status` is success; OutOfMemoryError where it ran out.
void check_cublas(cublasStatus_t status, const std::string& what);

struct DestroyLayout {
  void operator()(cublasLtMatrixLayoutOpaque_t* layout) const { (void)cublasLtMatrixLayoutDestroy(layout); }
};
using OwnedLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, DestroyLayout>;
struct DestroyOperation {
  void operator()(cublasLtMatmulDescOpaque_t* operation) const { (void)cublasLtMatmulDescDestroy(operation); }
};
using OwnedOperation = std::unique_ptr<cublasLtMatmulDescOpaque_t, DestroyOperation>;

/// All that cuBLASLt's choice of an algorithm may depend on; in row-major terms.
struct MatmulKey {
  std::int64_t m, n, k;
  std::int64_t first_stride, second_stride, addend_stride, result_stride;
  bool first_transposed, second_transposed, bias;
  bool in_place;  ///< the addend is the result
  cudaDataType_t operand_type, result_type;
  /// Largest powers of two, up to 256, that divide the addresses.
  std::uint32_t first_alignment, second_alignment, addend_alignment, result_alignment;
  std::int32_t multiprocessors;  ///< that the product is meant to fill; 0: all

  bool operator==(const MatmulKey&) const = default;
  std::string text() const;
  /// All of the key, in words: the name of the product in a tuning cache.
  std::string identity() const;
};

struct MatmulKeyHash {
  std::size_t operator()(const MatmulKey& key) const;
};

/// Addresses and factors of one call.
struct MatmulCall {
  const void* first;
  const void* second;
  const void* addend;
  void* result;
  const void* bias;
  float alpha, beta;
};

/// A name for cuBLAS' unnamed type: CUDA 13.0's front end stops with an internal error at a vector of that.
struct MatmulAlgorithm {
  cublasLtMatmulAlgo_t value;
};

/// A product of one shape: cuBLASLt's descriptors and algorithm. cuBLASLt is column-major, so the transposed
/// result is asked for, with the operands swapped; the bias then runs along the result's rows, as its epilogue
/// wants it.
class MatmulPlan {
 public:
  /// Asks the heuristic; no device work. Not while the stream is captured: cuBLASLt 13.3 then fails.
  /// `workspace_bytes` is what `run` may use, `most_candidates` at most 16. Throws DeviceError naming the shapes.
  MatmulPlan(cublasLtHandle_t handle, const MatmulKey& key, std::size_t workspace_bytes, int most_candidates);

  std::size_t candidates() const { return candidates_.size(); }
  /// Algorithm of `run` from now on; the heuristic's first choice until then.
  void choose(std::size_t candidate) { chosen_ = candidate; }
  /// The bytes of cuBLASLt's own description, which may be kept for the same version of the library, in hexadecimal.
  std::string algorithm(std::size_t candidate) const;
  void run(cublasLtHandle_t handle, const MatmulCall& call, std::byte* workspace, std::size_t workspace_bytes,
           cudaStream_t stream) const;

  bool loaded = false;  ///< the kernel has been launched or captured, so its code is on the device

 private:
  MatmulKey key_;
  OwnedOperation operation_;
  OwnedLayout first_, second_, addend_, result_;
  std::vector<MatmulAlgorithm> candidates_;
  std::size_t chosen_ = 0;
};

}  // namespace encore::backend::impl
