// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/blas.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace encore::backend {

/// Consecutive rows of a matrix by group, as the tokens sorted by their expert: group g has the rows
/// [begins[g], ends[g]). Rows between two groups, before the first and after the last belong to none.
/// The bounds lie in the space's memory and are read when the kernels run, so a recording may be replayed with others.
struct RowGroups {
  const std::int32_t* begins;  ///< [groups], rising
  const std::int32_t*
      ends;  ///< [groups], begins[g] <= ends[g] <= begins[g + 1]; begins + 1 where nothing is between
  std::int64_t groups;
  std::int64_t rows;  ///< of the matrices that are grouped: no bound is larger
};

/// cutlass: tensor core kernels on Hopper for bfloat16 operands whose addresses and strides are multiples of 16 bytes.
/// portable: the kernels that come with Encore, which take everything on every device.
enum class GroupedBlasEngine { cutlass, portable };

/// Matrix products of each group of rows with a matrix of its own, with float accumulation (double for double). How the
/// work is cut depends on the shapes alone, so results depend neither on the number of threads nor on other groups.
/// A group may be empty, and one may have all rows. One stream at a time.
template <class Space>
class GroupedBlas {
 public:
  explicit GroupedBlas(Stream<Space>& stream);
  ~GroupedBlas();
  GroupedBlas(const GroupedBlas&) = delete;
  GroupedBlas& operator=(const GroupedBlas&) = delete;

  /// For the rows of each group g: result [., n] = input [., k] * op(weights[g]) + bias[g]. `weights` is
  /// [groups, n, k] with Transpose::yes, [groups, k, n] with no; `bias` is [groups, n] or null. Rows of no group are
  /// neither read nor written. Throws InternalError naming the shapes when they do not match.
  /// May be captured, and neither allocates nor synchronises; but the first product of bfloat16 on CUDA loads kernels:
  /// where that is in a recording it throws CaptureError.
  template <class T>
  void multiply_rows(Stream<Space>& stream, const char* label, const RowGroups& groups,
                     MatrixOperand<const T> input, Transpose transpose_weights, const T* weights,
                     MatrixOperand<T> result, const T* bias = nullptr);

  /// For each group g: result[g] [m, n] = first [., m] transposed * second [., n], summed over the group's rows, and
  /// added to what is there when `accumulate`; without rows it becomes zero or stays. Result is T, or float with
  /// bfloat16 operands. As above in all else.
  template <class T, class Result>
  void multiply_weights(Stream<Space>& stream, const char* label, const RowGroups& groups,
                        MatrixOperand<const T> first, MatrixOperand<const T> second, Result* result,
                        bool accumulate);

  /// What computes bfloat16 products, for `encore info`.
  const char* description() const;

  /// Computes with this engine from now on, where it can. Throws DeviceError when it is not available.
  void force(GroupedBlasEngine engine);
  /// What computes bfloat16 products.
  GroupedBlasEngine engine() const;

  /// The kernels among which CUTLASS' engine chooses by the average number of rows of a group; for measurements.
  /// Empty where it is not available.
  std::vector<std::string> tiles_of_rows() const;
  std::vector<std::string> tiles_of_weights() const;
  /// Takes the kernels of these places in the lists from now on; -1: the choice by size.
  void force_tiles(int rows, int weights);

 private:
  struct Implementation;
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace encore::backend
