// SPDX-License-Identifier: Apache-2.0
#include "blas_plan_cuda.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>
#include <cstring>

namespace encore::backend::impl {

void check_cublas(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string sentence =
      what + ": cuBLASLt says " + cublasLtGetStatusName(status) + ", " + cublasLtGetStatusString(status);
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemoryError(sentence);
  throw DeviceError(sentence);
}

std::string MatmulKey::text() const {
  const auto type = [](cudaDataType_t t) { return t == CUDA_R_16BF ? "bfloat16" : "float32"; };
  return "matrix product [" + std::to_string(m) + ", " + std::to_string(k) + "]" +
         (first_transposed ? "^T" : "") + " stride " + std::to_string(first_stride) + " by [" +
         std::to_string(k) + ", " + std::to_string(n) + "]" + (second_transposed ? "^T" : "") + " stride " +
         std::to_string(second_stride) + " of " + type(operand_type) + " to " + type(result_type) +
         " stride " + std::to_string(result_stride) + (bias ? " with bias" : "");
}

std::string MatmulKey::identity() const {
  std::string identity = text();
  if (in_place) identity += " in place";
  identity += " addend stride " + std::to_string(addend_stride) + " aligned to";
  for (const std::uint32_t alignment :
       {first_alignment, second_alignment, addend_alignment, result_alignment})
    identity += " " + std::to_string(alignment);
  if (multiprocessors > 0) identity += " on " + std::to_string(multiprocessors) + " multiprocessors";
  return identity;
}

std::size_t MatmulKeyHash::operator()(const MatmulKey& key) const {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a, by words
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word) * 0x100000001b3ULL; };
  for (const std::int64_t word :
       {key.m, key.n, key.k, key.first_stride, key.second_stride, key.addend_stride, key.result_stride})
    add(static_cast<std::uint64_t>(word));
  add(static_cast<std::uint64_t>(key.first_transposed) |
      static_cast<std::uint64_t>(key.second_transposed) << 1 | static_cast<std::uint64_t>(key.bias) << 2 |
      static_cast<std::uint64_t>(key.in_place) << 3);
  add(static_cast<std::uint64_t>(key.operand_type) << 32 | static_cast<std::uint64_t>(key.result_type));
  for (const std::uint32_t alignment :
       {key.first_alignment, key.second_alignment, key.addend_alignment, key.result_alignment})
    add(alignment);
  add(static_cast<std::uint64_t>(key.multiprocessors));
  return static_cast<std::size_t>(hash ^ hash >> 32);
}

namespace {

/// A row-major matrix is, to a column-major library, its transpose.
OwnedLayout layout_of(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(columns),
                                          static_cast<std::uint64_t>(rows), stride),
               "describing a matrix [" + std::to_string(rows) + ", " + std::to_string(columns) + "] stride " +
                   std::to_string(stride));
  return OwnedLayout(layout);
}

class Preference {
 public:
  Preference() { check_cublas(cublasLtMatmulPreferenceCreate(&preference_), "choosing a matrix product"); }
  ~Preference() { (void)cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value),
                 "choosing a matrix product");
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

MatmulPlan::MatmulPlan(cublasLtHandle_t handle, const MatmulKey& key, std::size_t workspace_bytes,
                       int most_candidates)
    : key_(key) {
  cublasLtMatmulDesc_t operation = nullptr;
  // Single precision stays single precision: COMPUTE_32F does not round operands to TensorFloat-32.
  check_cublas(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), key.text());
  operation_.reset(operation);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    check_cublas(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), key.text());
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, key.second_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, key.first_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, key.operand_type);
  }
  if (key.multiprocessors > 0) set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, key.multiprocessors);
  first_ = layout_of(key.operand_type, key.first_transposed ? key.k : key.m,
                     key.first_transposed ? key.m : key.k, key.first_stride);
  second_ = layout_of(key.operand_type, key.second_transposed ? key.n : key.k,
                      key.second_transposed ? key.k : key.n, key.second_stride);
  addend_ = layout_of(key.result_type, key.m, key.n, key.addend_stride);
  result_ = layout_of(key.result_type, key.m, key.n, key.result_stride);

  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
  // Sums split over k meet in the workspace, in float and in a fixed order.
  preference.set(
      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.second_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.first_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.addend_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.result_alignment);

  std::array<cublasLtMatmulHeuristicResult_t, 16> found{};
  int count = 0;
  check_cublas(cublasLtMatmulAlgoGetHeuristic(handle, operation, second_.get(), first_.get(), addend_.get(),
                                              result_.get(), preference.get(),
                                              std::min(most_candidates, static_cast<int>(found.size())),
                                              found.data(), &count),
               key.text());
  for (int i = 0; i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS) candidates_.push_back({found[i].algo});
  if (candidates_.empty())
    throw DeviceError(key.text() + ": cuBLASLt has no algorithm for it on this device");
}

std::string MatmulPlan::algorithm(std::size_t candidate) const {
  static_assert(std::is_trivially_copyable_v<cublasLtMatmulAlgo_t>);
  std::array<unsigned char, sizeof(cublasLtMatmulAlgo_t)> bytes;
  std::memcpy(bytes.data(), &candidates_[candidate].value, bytes.size());
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

void MatmulPlan::run(cublasLtHandle_t handle, const MatmulCall& call, std::byte* workspace,
                     std::size_t workspace_bytes, cudaStream_t stream) const {
  if (key_.bias)
    check_cublas(cublasLtMatmulDescSetAttribute(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &call.bias, sizeof call.bias),
                 key_.text());
  const cublasStatus_t status =
      cublasLtMatmul(handle, operation_.get(), &call.alpha, call.second, second_.get(), call.first,
                     first_.get(), &call.beta, call.addend, addend_.get(), call.result, result_.get(),
                     &candidates_[chosen_].value, workspace, workspace_bytes, stream);
  if (status != CUBLAS_STATUS_SUCCESS) check_cublas(status, key_.text());
}

}  // namespace encore::backend::impl
