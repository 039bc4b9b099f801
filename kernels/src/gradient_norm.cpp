// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/optimizer.hpp>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

constexpr std::int64_t partial_count = 1024;
constexpr std::int64_t norm_sum_count = 256;

/// One partial sum per team. Squares are added up in Accumulator over a packet and in double beyond it, so
/// that a billion gradients lose nothing.
template <int Width, class G>
struct SquaredNorm {
  using A = Accumulator<G>;
  static constexpr int threads = 256;

  const G* gradients;
  double* partials;
  std::int64_t size;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t share = team.league_rank(), packets = size / Width;
    const std::int64_t begin = packets * share / partial_count, end = packets * (share + 1) / partial_count;
    double total = 0;
    if constexpr (impl::is_host_team<Team>) {
      const G* from = gradients + begin;
      total = team.template sum_over<double>(
          end - begin, [=](std::int64_t i) { return static_cast<double>(square(from[i])); });
    } else {
      total = team.template sum_over<double>(end - begin, [&](std::int64_t p) {
        const auto value = backend::load_packet<Width>(gradients, begin + p);
        A sum(0);
        for (int i = 0; i < Width; ++i) sum += square(value[i]);
        return static_cast<double>(sum);
      });
      if (share == partial_count - 1)
        for (std::int64_t e = packets * Width; e < size; ++e)
          total += static_cast<double>(square(gradients[e]));
    }
    if (team.rank() == 0) partials[share] = total;
  }

 private:
  KOKKOS_FUNCTION static A square(G gradient) {
    const A value = static_cast<A>(gradient);
    return value * value;
  }
};

/// Sums a share of the partials.
template <class A>
struct SumPartials {
  const A* partials;
  double* sums;
  std::int64_t count;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t share = team.league_rank();
    const std::int64_t begin = count * share / norm_sum_count, end = count * (share + 1) / norm_sum_count;
    const A* from = partials + begin;
    const double sum = team.template sum_over<double>(
        end - begin, [=](std::int64_t i) { return static_cast<double>(from[i]); });
    if (team.rank() == 0) sums[share] = sum;
  }
};

struct NormOfSums {
  const double* sums;
  const double* gradient_scale;
  double* norm;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const double* from = sums;
    const double squares =
        team.template sum_over<double>(norm_sum_count, [=](std::int64_t i) { return from[i]; });
    if (team.rank() == 0) *norm = Kokkos::abs(*gradient_scale) * Kokkos::sqrt(squares);
  }
};

struct SumOfPartials {
  const double* partials;
  double* sum;
  std::int64_t count;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const double* from = partials;
    const double total = team.template sum_over<double>(count, [=](std::int64_t i) { return from[i]; });
    if (team.rank() == 0) *sum = total;
  }
};

}  // namespace

std::int64_t gradient_norm_sum_count() { return norm_sum_count; }
std::int64_t squared_norm_partial_count() { return partial_count; }

template <class Space, class G>
void squared_norm_partials(Stream<Space>& stream, Vector<const G, Space> gradients,
                           Vector<double, Space> partials) {
  const std::int64_t size = impl::rows_of(gradients);
  impl::require_shape(impl::is_vector(gradients, size) && impl::is_vector(partials, partial_count),
                      "squared_norm_partials: partials must have squared_norm_partial_count() elements");
  impl::with_packet_width<Space>(
      0,  // What does not fill a packet is added on its own.
      [&](auto width) {
        using Functor = SquaredNorm<width, G>;
        launch(stream, "optimizer/squared_norm", {backend::read(gradients), backend::write(partials)},
               backend::Teams<Functor::threads>{partial_count},
               Functor{gradients.data(), partials.data(), size});
      },
      gradients.data());
}

template <class Space>
void sum_partials(Stream<Space>& stream, Vector<const double, Space> partials, double* sum) {
  launch(stream, "optimizer/sum_partials", {backend::read(partials), backend::write(sum, 1)},
         backend::Teams<256>{1}, SumOfPartials{partials.data(), sum, impl::rows_of(partials)});
}

template <class Space, class A>
void gradient_norm(Stream<Space>& stream, Vector<const A, Space> partials, const double* gradient_scale,
                   Vector<double, Space> sums, double* norm) {
  impl::require_shape(
      impl::rows_of(partials) > 0 && impl::is_vector(sums, norm_sum_count),
      "gradient_norm: partials must not be empty and sums have gradient_norm_sum_count() elements");
  using backend::read, backend::write;
  launch(stream, "optimizer/norm_sums", {read(partials), write(sums)}, backend::Teams<256>{norm_sum_count},
         SumPartials<A>{partials.data(), sums.data(), impl::rows_of(partials)});
  launch(stream, "optimizer/norm", {read(sums), read(gradient_scale, 1), write(norm, 1)},
         backend::Teams<32>{1}, NormOfSums{sums.data(), gradient_scale, norm});
}

#define ENCORE_INSTANTIATE(SPACE, G)                                                    \
  template void squared_norm_partials<SPACE, G>(Stream<SPACE>&, Vector<const G, SPACE>, \
                                                Vector<double, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

#define ENCORE_INSTANTIATE(SPACE) \
  template void sum_partials<SPACE>(Stream<SPACE>&, Vector<const double, SPACE>, double*);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

#define ENCORE_INSTANTIATE(SPACE, A)                                                           \
  template void gradient_norm<SPACE, A>(Stream<SPACE>&, Vector<const A, SPACE>, const double*, \
                                        Vector<double, SPACE>, double*);
#define ENCORE_INSTANTIATE_FLOAT(SPACE) ENCORE_INSTANTIATE(SPACE, float)
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE_FLOAT)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double))
#undef ENCORE_INSTANTIATE_FLOAT
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
