// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>

#include <cstdint>
#include <memory>

namespace encore::backend {

class TuningCache;
struct TuningMachine;

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

/// library: the vendor's (cuBLASLt, OpenBLAS). portable: the kernel that comes with Encore, on hosts only.
enum class BlasEngine { library, portable };

/// What is added to the product. `addend` has the result's shape and may be the result itself.
template <class Result>
struct MatrixProductOptions {
  const void* bias = nullptr;      ///< [columns of the result], of the operands' type; added to every row
  const Result* addend = nullptr;  ///< scaled by beta and added
  std::int64_t addend_stride = 0;  ///< 0: the result's stride
  float alpha = 1.0F;
  float beta = 0.0F;  ///< 0: the addend is not read
};

/// What tuning did so far.
struct TuningReport {
  std::size_t measured = 0;  ///< products whose algorithm was picked by measurement
  std::size_t taken = 0;     ///< products whose algorithm a cache had
  std::size_t unknown = 0;   ///< of those measured: a cache had an algorithm that the library does not offer
  std::size_t without_room =
      0;               ///< products that had no memory to be measured in, and have the library's choice
  double seconds = 0;  ///< that measuring took
};

/// Dense matrix products with float accumulation (double for double): cuBLASLt on CUDA; on hosts OpenBLAS or
/// a portable kernel, cut into tiles that do not depend on the number of threads, so results do not either.
/// Owns its workspace and remembers the algorithm chosen for each shape. One stream at a time.
/// On hosts OpenBLAS computes float and double where it was found, passes a short check of its results, and runs
/// kernels made for this processor (releases older than the processor fall back to SSE3 ones, four times slower
/// than the portable kernel); bfloat16 operands always take the portable kernel. Where OpenBLAS is used it is set
/// to one thread, for the whole process.
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
  /// With beta 0 or without an addend the result is only written; with alpha 0 the operands are not read.
  /// May be captured. Allocates and synchronises nothing, but for tuning (below).
  template <class T, class Result>
  void multiply(Stream<Space>& stream, const char* label, Transpose transpose_first,
                MatrixOperand<const T> first, Transpose transpose_second, MatrixOperand<const T> second,
                MatrixOperand<Result> result, const MatrixProductOptions<Result>& options = {});

  /// Name and version of the library that computes, for `encore info`.
  const char* description() const;

  /// Computes with this engine from now on. Throws DeviceError when it is not available.
  void force(BlasEngine engine);
  BlasEngine engine() const;

  /// CUDA: when a shape is first met in execute or prime mode, times the heuristic's best candidates and keeps the
  /// fastest: the stream is synchronized, memory of the operands' size may be taken for a moment, and operands and
  /// result are as after the product alone. The choice may differ between processes, unless both are given a `cache`
  /// of the same contents: what that has is not measured, and what is measured is put into it. Off by default; no
  /// effect on hosts, and none while recording.
  void enable_tuning(bool enabled, std::shared_ptr<TuningCache> cache = nullptr);
  TuningReport tuning_report() const;
  /// What entries of a cache are for; on hosts the names are empty.
  TuningMachine tuning_machine() const;

 private:
  struct Implementation;
  std::shared_ptr<Implementation> implementation_;  ///< also of the graphs that it was recorded in
};

}  // namespace encore::backend
