// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/squared_error.hpp>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

constexpr int team_threads = 256;

/// Gradient and sum of squares of one share of the elements.
template <class T>
struct SquaredErrorShare {
  using A = Accumulator<T>;

  StridedMatrix<const T> output, target;
  T* gradient;
  double* partials;
  std::int64_t shares;
  A factor;  ///< 2 / elements

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t elements = output.rows * output.columns, share = team.league_rank();
    const std::int64_t begin = elements * share / shares, end = elements * (share + 1) / shares;
    const auto& self = *this;
    team.for_each(end - begin, [&](std::int64_t i) {
      self.gradient[begin + i] = static_cast<T>(self.factor * self.difference(begin + i));
    });
    const double squares = team.template sum_over<double>(end - begin, [&](std::int64_t i) {
      const auto d = static_cast<double>(self.difference(begin + i));
      return d * d;
    });
    if (team.rank() == 0) partials[share] = squares;
  }

  KOKKOS_FUNCTION A difference(std::int64_t element) const {
    const std::int64_t row = impl::quotient(element, output.columns), column = element - row * output.columns;
    return static_cast<A>(output.data[row * output.row_stride + column * output.column_stride]) -
           static_cast<A>(target.data[row * target.row_stride + column * target.column_stride]);
  }
};

struct MeanOfPartials {
  const double* partials;
  double* mean;
  std::int64_t count, elements;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const double* from = partials;
    const double sum = team.template sum_over<double>(count, [=](std::int64_t i) { return from[i]; });
    if (team.rank() == 0) *mean = elements == 0 ? 0.0 : sum / static_cast<double>(elements);
  }
};

}  // namespace

std::int64_t squared_error_partial_count(std::int64_t elements) {
  constexpr std::int64_t elements_of_share = 1024, most = 1024;
  const std::int64_t shares = impl::rounded_up_quotient(elements, elements_of_share);
  return shares < 1 ? 1 : shares > most ? most : shares;
}

template <class Space, class T>
void mean_squared_error(Stream<Space>& stream, StridedMatrix<const T> output, StridedMatrix<const T> target,
                        Matrix<T, Space> output_gradient, Vector<double, Space> partials, double* error) {
  const std::int64_t rows = output.rows, columns = output.columns, elements = rows * columns;
  const std::int64_t shares = squared_error_partial_count(elements);
  impl::require_shape(
      target.rows == rows && target.columns == columns && impl::is_matrix(output_gradient, rows, columns),
      "mean_squared_error: output, target and gradient must have the same shape");
  impl::require_shape(
      impl::rows_of(partials) >= shares,
      "mean_squared_error: partials must have squared_error_partial_count(elements) elements");
  using backend::read, backend::write;
  const auto count = static_cast<std::size_t>(shares);
  launch(stream, "squared_error/shares",
         {read(output.data, output.span()), read(target.data, target.span()), write(output_gradient),
          write(partials.data(), count)},
         backend::Teams<team_threads>{shares},
         SquaredErrorShare<T>{output, target, output_gradient.data(), partials.data(), shares,
                              static_cast<Accumulator<T>>(2.0 / static_cast<double>(elements))});
  const backend::BesideScope<Space> beside(stream);
  launch(stream, "squared_error/mean", {read(partials.data(), count), write(error, 1)},
         backend::Teams<team_threads>{1}, MeanOfPartials{partials.data(), error, shares, elements});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                         \
  template void mean_squared_error<SPACE, T>(Stream<SPACE>&, StridedMatrix<const T>, StridedMatrix<const T>, \
                                             Matrix<T, SPACE>, Vector<double, SPACE>, double*);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
