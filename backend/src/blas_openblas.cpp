// SPDX-License-Identifier: Apache-2.0
#include "blas_openblas.hpp"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

// Also declared by OpenBLAS' own cblas.h, but not by that of a generic BLAS package.
extern "C" {
char* openblas_get_config(void);
char* openblas_get_corename(void);
int openblas_get_parallel(void);
void openblas_set_num_threads(int);
}

namespace encore::backend::impl {

namespace {

void call(CBLAS_TRANSPOSE first, CBLAS_TRANSPOSE second, int m, int n, int k, float alpha, const float* a,
          int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  cblas_sgemm(CblasRowMajor, first, second, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void call(CBLAS_TRANSPOSE first, CBLAS_TRANSPOSE second, int m, int n, int k, double alpha, const double* a,
          int lda, const double* b, int ldb, double beta, double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, first, second, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <class T>
void compute_tile(const HostProduct<T, T>& product, const ProductTile& tile) {
  const std::int64_t rows = tile.row_end - tile.row_begin;
  const std::int64_t columns = tile.column_end - tile.column_begin;
  T* result = product.result + tile.row_begin * product.result_stride + tile.column_begin;
  const bool addend_in_place =
      product.addend == product.result && product.addend_stride == product.result_stride;
  T beta(0);
  if (product.bias == nullptr && (addend_in_place && product.k > 0)) {
    beta = product.beta;
  } else if (product.bias != nullptr || product.addend != nullptr || product.k == 0) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        result[i * product.result_stride + j] = added_to(product, tile.row_begin + i, tile.column_begin + j);
    beta = T(1);
  }
  if (product.k == 0) return;
  const T* first =
      product.first + (product.first_transposed ? tile.row_begin : tile.row_begin * product.first_stride);
  const T* second = product.second + (product.second_transposed ? tile.column_begin * product.second_stride
                                                                : tile.column_begin);
  call(product.first_transposed ? CblasTrans : CblasNoTrans,
       product.second_transposed ? CblasTrans : CblasNoTrans, static_cast<int>(rows),
       static_cast<int>(columns), static_cast<int>(product.k), product.alpha, first,
       static_cast<int>(product.first_stride), second, static_cast<int>(product.second_stride), beta, result,
       static_cast<int>(product.result_stride));
}

/// Vector width of the kernels that OpenBLAS has picked. It picks the oldest for processors it does not know.
int openblas_vector_bytes() {
  const std::string_view core = openblas_get_corename();
  for (const char* name : {"SkylakeX", "Cooperlake", "SapphireRapids", "A64FX"})
    if (core == name) return 64;
  for (const char* name : {"Haswell", "Zen", "Sandybridge", "NeoverseV1"})
    if (core == name) return 32;
  return 16;
}

/// Compares with sums in double. Some releases compute wrong products on processors newer than themselves.
template <class T>
bool computes_right(T tolerance) {
  constexpr std::array<std::array<int, 3>, 4> shapes = {
      {{17, 33, 5}, {64, 48, 70}, {1, 100, 129}, {130, 9, 31}}};
  for (const auto& [m, n, k] : shapes) {
    std::vector<T> first(m * k), second(k * n), result(m * n);
    for (int i = 0; i < m * k; ++i) first[i] = T(i * 37 % 101 - 50) / T(50);
    for (int i = 0; i < k * n; ++i) second[i] = T(i * 53 % 97 - 48) / T(48);
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool first_transposed = (transposed & 1) != 0;
      const bool second_transposed = (transposed & 2) != 0;
      const HostProduct<T, T> product{first.data(),
                                      second.data(),
                                      result.data(),
                                      nullptr,
                                      nullptr,
                                      first_transposed ? m : k,
                                      second_transposed ? k : n,
                                      n,
                                      n,
                                      m,
                                      n,
                                      k,
                                      first_transposed,
                                      second_transposed,
                                      T(1),
                                      T(0)};
      compute_tile(product, {0, m, 0, n});
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
          double sum = 0;
          for (int p = 0; p < k; ++p)
            sum += double(first[first_transposed ? p * m + i : i * k + p]) *
                   double(second[second_transposed ? j * k + p : p * n + j]);
          if (!(std::abs(sum - double(result[i * n + j])) <= double(tolerance) * k)) return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

bool openblas_usable() {
  // 0: a build without threads has no locks either, unless it was asked for them, and then gives wrong products to threads
  // that call it at the same time (OpenBLAS' README: "USE_LOCKING"). 2: a build for OpenMP asks for the number of threads
  // by thread, so that each caller would start some of its own. 1: threads and locks of its own.
  constexpr int with_locks = 1;
  if (openblas_get_parallel() != with_locks) return false;
  if (openblas_vector_bytes() < portable_vector_bytes()) return false;
  openblas_set_num_threads(1);
  return computes_right<float>(1e-6F) && computes_right<double>(1e-14);
}

std::string openblas_description() {
  const std::string configuration = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
  return configuration.substr(0, configuration.find(' ', configuration.find(' ') + 1)) + " (" +
         openblas_get_corename() + ")";
}

void openblas_tile(const HostProduct<float, float>& product, const ProductTile& tile) {
  compute_tile(product, tile);
}
void openblas_tile(const HostProduct<double, double>& product, const ProductTile& tile) {
  compute_tile(product, tile);
}

}  // namespace encore::backend::impl
