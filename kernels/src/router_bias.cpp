// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/router.hpp>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

struct AccumulateCounts {
  const std::int32_t* tokens_of_expert;
  std::int32_t* counts;
  bool accumulate;

  KOKKOS_FUNCTION void operator()(std::int64_t expert) const {
    counts[expert] = (accumulate ? counts[expert] : 0) + tokens_of_expert[expert];
  }
};

/// One team a layer.
template <class A>
struct ExpertBiasUpdate {
  static constexpr int threads = 128;

  const std::int32_t* counts;
  const double* rate;
  const double* gradient_norm;
  const double* skip_above;
  const double* hold;
  A* bias;
  std::int64_t experts;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    if (hold != nullptr && *hold > 0) return;
    if (gradient_norm != nullptr && *skip_above > 0 && !(*gradient_norm <= *skip_above)) return;
    const std::int32_t* count = counts + team.league_rank() * experts;
    A* row = bias + team.league_rank() * experts;
    const auto total = team.template sum_over<double>(
        experts, [=](std::int64_t e) { return static_cast<double>(count[e]); });
    const double mean = total / static_cast<double>(experts);
    const auto step = static_cast<A>(*rate);
    team.for_each(experts, [=](std::int64_t e) {
      row[e] += count[e] < mean ? step : count[e] > mean ? -step : A(0);
    });
  }
};

}  // namespace

template <class Space>
void accumulate_counts(Stream<Space>& stream, Vector<const std::int32_t, Space> tokens_of_expert,
                       Vector<std::int32_t, Space> counts, bool accumulate) {
  const std::int64_t experts = impl::rows_of(counts);
  impl::require_shape(impl::is_vector(tokens_of_expert, experts) && impl::is_vector(counts, experts),
                      "accumulate_counts: tokens_of_expert and counts must have the same length");
  launch(stream, "router/counts", {backend::read(tokens_of_expert), backend::write(counts)},
         backend::Range{experts}, AccumulateCounts{tokens_of_expert.data(), counts.data(), accumulate});
}

template <class Space, class A>
void expert_bias_update(Stream<Space>& stream, Matrix<const std::int32_t, Space> counts, const double* rate,
                        const double* gradient_norm, const double* skip_above, const double* hold,
                        Matrix<A, Space> bias) {
  const std::int64_t layers = impl::rows_of(bias), experts = impl::columns_of(bias);
  impl::require_shape(
      impl::is_matrix(counts, layers, experts) && impl::is_matrix(bias, layers, experts) &&
          (gradient_norm == nullptr) == (skip_above == nullptr),
      "expert_bias_update: counts and bias must be [layers, experts], gradient_norm and skip_above "
      "given both or neither");
  const std::size_t scalars = gradient_norm == nullptr ? 0 : 1;
  launch(stream, "router/bias_update",
         {backend::read(counts), backend::read(rate, 1), backend::read(gradient_norm, scalars),
          backend::read(skip_above, scalars), backend::read(hold, hold == nullptr ? 0 : 1),
          backend::write(bias)},
         backend::Teams<ExpertBiasUpdate<A>::threads>{layers},
         ExpertBiasUpdate<A>{counts.data(), rate, gradient_norm, skip_above, hold, bias.data(), experts});
}

#define ENCORE_INSTANTIATE(SPACE, A)                                                                     \
  template void expert_bias_update<SPACE, A>(Stream<SPACE>&, Matrix<const std::int32_t, SPACE>,          \
                                             const double*, const double*, const double*, const double*, \
                                             Matrix<A, SPACE>);
#define ENCORE_INSTANTIATE_SPACE(SPACE)                                                     \
  template void accumulate_counts<SPACE>(Stream<SPACE>&, Vector<const std::int32_t, SPACE>, \
                                         Vector<std::int32_t, SPACE>, bool);                \
  ENCORE_INSTANTIATE(SPACE, float)
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE_SPACE)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double))
#undef ENCORE_INSTANTIATE_SPACE
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
