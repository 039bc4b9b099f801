// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/residual.hpp>

#include "map.hpp"

namespace encore::kernels {

namespace {

struct Add {
  template <class A>
  KOKKOS_FUNCTION A operator()(A first, A second) const {
    return first + second;
  }
};

}  // namespace

template <class Space, class T>
void add(Stream<Space>& stream, Matrix<const T, Space> first, Matrix<const T, Space> second,
         Matrix<T, Space> output) {
  const std::int64_t rows = impl::rows_of(output), columns = impl::columns_of(output);
  impl::require_shape(impl::is_matrix(output, rows, columns) && impl::is_matrix(first, rows, columns) &&
                          impl::is_matrix(second, rows, columns),
                      "add: the two inputs and the output must have the same shape");
  impl::launch_map(stream, "residual/add", Add{}, rows * columns, output.data(), first.data(), second.data());
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                          \
  template void add<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<const T, SPACE>, \
                              Matrix<T, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
