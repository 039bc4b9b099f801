// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>

#include <cstdint>
#include <memory>

namespace encore::backend {

/// How an operand is stored relative to the matrix that enters the product.
enum class Transpose { no, yes };

/// A row-major matrix in memory: element (i, j) is data[i * stride + j].
template <class T>
struct MatrixOperand {
  T* data;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t stride;
};

template <class T, class Space>
MatrixOperand<T> operand(const Matrix<T, Space>& view) {
  return {view.data(), static_cast<std::int64_t>(view.extent(0)), static_cast<std::int64_t>(view.extent(1)),
          static_cast<std::int64_t>(view.stride_0())};
}

/// What is added to the product. `addend` has the result's shape and may be the result itself.
template <class Result>
struct MatrixProductOptions {
  const void* bias = nullptr;       ///< [columns of the result], of the operands' type; added to every row
  const Result* addend = nullptr;   ///< scaled by beta and added
  std::int64_t addend_stride = 0;   ///< 0: the result's stride
  float alpha = 1.0F;
  float beta = 0.0F;                ///< 0: the addend is not read
};

/// Dense matrix products with float accumulation (double for double): cuBLASLt on CUDA; on hosts OpenBLAS or
/// a portable kernel, cut into tiles that do not depend on the number of threads, so results do not either.
/// Owns its workspace and remembers the algorithm chosen for each shape. One stream at a time.
template <class Space>
class Blas {
 public:
  explicit Blas(Stream<Space>& stream);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  /// result = alpha * op(first) * op(second) + beta * addend + bias.
  /// op(first) is [m, k], op(second) is [k, n], result is [m, n]. T is the operands' type; Result is T, or
  /// float with bfloat16 operands. Throws InternalError naming the shapes when they do not match.
  /// May be captured; allocates and synchronises nothing.
  template <class T, class Result>
  void multiply(Stream<Space>& stream, const char* label, Transpose transpose_first,
                MatrixOperand<const T> first, Transpose transpose_second, MatrixOperand<const T> second,
                MatrixOperand<Result> result, const MatrixProductOptions<Result>& options = {});

  /// Name and version of the library that computes, for `encore info`.
  const char* description() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace encore::backend
