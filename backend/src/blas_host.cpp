// SPDX-License-Identifier: Apache-2.0
#include "blas_openblas.hpp"
#include "blas_portable.hpp"
#include "blas_shapes.hpp"

#include <encore/backend/blas_workspace.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/tuning_cache.hpp>

#include <algorithm>
#include <string>

namespace encore::backend {

namespace impl {

namespace {

/// How a result is cut. Depends on the shape alone, so that any number of threads computes the same bits.
struct Tiling {
  std::int64_t rows, columns;  ///< of one tile
  std::int64_t across, down;   ///< tiles
};

/// Measured on one core with AVX-512: 128 x 256 tiles reach 150 GFLOP/s at k = 128, 64 x 64 ones 140 (and 100
/// at k = 2048, where they pack more for each sum); smaller ones lose half. So tiles shrink to 64 x 64 while
/// there are fewer of them than a large host has cores.
Tiling tiling_of(std::int64_t m, std::int64_t n) {
  constexpr std::int64_t wanted_tiles = 48;
  constexpr std::int64_t smallest = 64;
  std::int64_t rows = 128;
  std::int64_t columns = 256;
  const auto count = [](std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; };
  while (count(m, rows) * count(n, columns) < wanted_tiles) {
    if (columns > smallest && columns >= rows)
      columns /= 2;
    else if (rows > smallest)
      rows /= 2;
    else
      break;
  }
  const std::int64_t down = count(m, rows);
  const std::int64_t across = count(n, columns);
  rows = count(count(m, down), 8) * 8;
  columns = count(count(n, across), 32) * 32;
  return {rows, columns, count(n, columns), count(m, rows)};
}

template <class T, class Result>
struct HostProductKernel {
  HostProduct<T, Result> product;
  Tiling tiling;
  BlasEngine engine;

  void operator()(const HostTeam& team) const {
    const std::int64_t row = team.league_rank() / tiling.across * tiling.rows;
    const std::int64_t column = team.league_rank() % tiling.across * tiling.columns;
    const ProductTile tile{row, std::min(row + tiling.rows, product.m), column,
                           std::min(column + tiling.columns, product.n)};
    if constexpr (std::is_same_v<T, Accumulator<T>>) {
      if (engine == BlasEngine::library) return openblas_tile(product, tile);
    }
    portable_tile(product, tile, team.scratch<std::byte>());
  }
};

}  // namespace

}  // namespace impl

template <class Space>
struct Blas<Space>::Implementation {
  bool library_usable = impl::openblas_usable();
  BlasEngine engine = library_usable ? BlasEngine::library : BlasEngine::portable;
  std::string library = impl::openblas_description();
};

template <class Space>
Blas<Space>::Blas(Stream<Space>&) : implementation_(std::make_shared<Implementation>()) {}

template <class Space>
Blas<Space>::~Blas() = default;

template <class Space>
template <class T, class Result>
void Blas<Space>::multiply(Stream<Space>& stream, const char* label, Transpose transpose_first,
                           MatrixOperand<const T> first, Transpose transpose_second,
                           MatrixOperand<const T> second, MatrixOperand<Result> result,
                           const MatrixProductOptions<Result>& options) {
  using A = Accumulator<T>;
  const auto [m, n, k] =
      impl::check_product(label, transpose_first, first, transpose_second, second, result, options);
  if (m == 0 || n == 0) return;
  const bool adds = options.addend != nullptr && options.beta != 0.0F;
  const std::int64_t addend_stride = options.addend_stride == 0 ? result.stride : options.addend_stride;
  const auto* bias = static_cast<const T*>(options.bias);
  const impl::HostProduct<T, Result> product{first.data,
                                             second.data,
                                             result.data,
                                             adds ? options.addend : nullptr,
                                             bias,
                                             first.stride,
                                             second.stride,
                                             result.stride,
                                             addend_stride,
                                             m,
                                             n,
                                             options.alpha == 0.0F ? 0 : k,
                                             transpose_first == Transpose::yes,
                                             transpose_second == Transpose::yes,
                                             static_cast<A>(options.alpha),
                                             static_cast<A>(options.beta)};
  const impl::Tiling tiling = impl::tiling_of(m, n);
  const Access addend_access =
      adds ? impl::matrix_access(MatrixOperand<const Result>{options.addend, m, n, addend_stride}, false)
           : Access{};
  const Access bias_access = bias != nullptr ? read(bias, static_cast<std::size_t>(n)) : Access{};
  launch(stream, label,
         {impl::matrix_access(first, false), impl::matrix_access(second, false), addend_access, bias_access,
          impl::matrix_access(result, true)},
         Teams<32>{tiling.across * tiling.down,
                   impl::portable_scratch_bytes<T>(tiling.rows, tiling.columns, product.k)},
         impl::HostProductKernel<T, Result>{product, tiling, implementation_->engine});
  stream.note_flops(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(product.k));
}

template <class Space>
const char* Blas<Space>::description() const {
  return implementation_->engine == BlasEngine::library ? implementation_->library.c_str()
                                                        : "portable host kernel";
}

template <class Space>
void Blas<Space>::force(BlasEngine engine) {
  if (engine == BlasEngine::library && !implementation_->library_usable) {
    const std::string& found = implementation_->library;
    throw DeviceError(found.empty()
                          ? "matrix products cannot be forced onto OpenBLAS: Encore was built without it"
                          : "matrix products cannot be forced onto " + found +
                                ": its kernels are wrong or too old for this processor (set "
                                "OPENBLAS_CORETYPE, or install a newer OpenBLAS)");
  }
  implementation_->engine = engine;
}

template <class Space>
BlasEngine Blas<Space>::engine() const {
  return implementation_->engine;
}

template <class Space>
void Blas<Space>::enable_tuning(bool, std::shared_ptr<TuningCache>) {}

template <class Space>
TuningReport Blas<Space>::tuning_report() const {
  return {};
}

template <class Space>
TuningMachine Blas<Space>::tuning_machine() const {
  return {};
}

template <class Space>
std::size_t blas_workspace_bytes() {
  return 0;
}

#define ENCORE_INSTANTIATE_PRODUCT(SPACE, T, RESULT)                                                     \
  template void Blas<SPACE>::multiply<T, RESULT>(                                                        \
      Stream<SPACE>&, const char*, Transpose, MatrixOperand<const T>, Transpose, MatrixOperand<const T>, \
      MatrixOperand<RESULT>, const MatrixProductOptions<RESULT>&);
#define ENCORE_INSTANTIATE(SPACE)                       \
  template class Blas<SPACE>;                           \
  template std::size_t blas_workspace_bytes<SPACE>();   \
  ENCORE_INSTANTIATE_PRODUCT(SPACE, float, float)       \
  ENCORE_INSTANTIATE_PRODUCT(SPACE, bfloat16, bfloat16) \
  ENCORE_INSTANTIATE_PRODUCT(SPACE, bfloat16, float)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial))
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE_PRODUCT(Kokkos::Serial, double, double))
ENCORE_IF_OPENMP(ENCORE_INSTANTIATE(Kokkos::OpenMP))
#undef ENCORE_INSTANTIATE
#undef ENCORE_INSTANTIATE_PRODUCT

}  // namespace encore::backend
