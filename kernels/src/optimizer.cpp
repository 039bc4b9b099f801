// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/optimizer.hpp>

#include <algorithm>

#include "lanes.hpp"
#include "mathematics.hpp"
#include "shapes.hpp"

namespace encore::kernels {

namespace {

/// Elements of which adamw makes one sum: the packets of a warp, or of half of one.
constexpr std::int64_t elements_of_partial = 128;

/// What adamw_prepare writes and adamw reads.
enum Factor {
  gradient_factor,
  decay_factor,
  beta1_factor,
  one_minus_beta1,
  beta2_factor,
  one_minus_beta2,
  step_size,
  inverse_root_bias2,
  epsilon_factor,
  skip_factor,  ///< not 0: nothing is updated
  factor_count
};

template <class A>
struct AdamwPrepare {
  const double* partials;
  std::int64_t count;
  AdamwScalars scalars;
  double* gradient_norm;
  A* factors;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const double* from = partials;
    const double squares = team.template sum_over<double>(count, [=](std::int64_t i) { return from[i]; });
    if (team.rank() != 0) return;
    const double scale = *scalars.gradient_scale, clip = *scalars.clip, rate = *scalars.learning_rate;
    const double beta1 = *scalars.beta1, beta2 = *scalars.beta2, step = *scalars.step;
    const double norm = Kokkos::abs(scale) * Kokkos::sqrt(squares);
    const double ratio = clip > 0 && count > 0 ? clip / (norm + 1e-6) : 1.0;
    if (count > 0) *gradient_norm = norm;
    // Written so that a NaN ratio stays NaN.
    factors[gradient_factor] = static_cast<A>(scale * (ratio > 1 ? 1.0 : ratio));
    factors[decay_factor] = static_cast<A>(1 - rate * *scalars.weight_decay);
    factors[beta1_factor] = static_cast<A>(beta1);
    factors[one_minus_beta1] = static_cast<A>(1 - beta1);
    factors[beta2_factor] = static_cast<A>(beta2);
    factors[one_minus_beta2] = static_cast<A>(1 - beta2);
    factors[step_size] = static_cast<A>(rate / (1 - Kokkos::pow(beta1, step)));
    factors[inverse_root_bias2] = static_cast<A>(1 / Kokkos::sqrt(1 - Kokkos::pow(beta2, step)));
    factors[epsilon_factor] = static_cast<A>(*scalars.epsilon);
    const double skip_above = count > 0 ? *scalars.skip_above : 0;
    const bool held = scalars.hold != nullptr && *scalars.hold > 0;
    factors[skip_factor] = static_cast<A>(held || (skip_above > 0 && !(norm <= skip_above)));
  }
};

template <int Width, bool Master, class T, class G, class S>
struct Adamw {
  using A = Accumulator<T>;
  static constexpr int width = Width;

  const G* gradients;
  const A* factors;
  T* weights;
  A* master;
  S* first_moment;
  S* second_moment;
  std::int64_t size, decayed;

  KOKKOS_FUNCTION std::int64_t items() const { return (size + Width - 1) / Width; }

  KOKKOS_FUNCTION void operator()(std::int64_t item) const { (void)update_item(item); }

  /// Returns the sum of its gradients' squares.
  KOKKOS_FUNCTION A update_item(std::int64_t item) const {
    if constexpr (Width > 1)
      if ((item + 1) * Width <= size) return update_packet(item);
    A squares(0);
    for (std::int64_t e = item * Width; e < size && e < (item + 1) * Width; ++e) squares += update_element(e);
    return squares;
  }

 private:
  KOKKOS_FUNCTION void update(A& weight, A gradient, A& first, A& second, bool decays) const {
    gradient *= factors[gradient_factor];
    weight *= decays ? factors[decay_factor] : A(1);
    first = factors[beta1_factor] * first + factors[one_minus_beta1] * gradient;
    second = factors[beta2_factor] * second + factors[one_minus_beta2] * gradient * gradient;
    const A root = impl::quick_square_root(second) * factors[inverse_root_bias2] + factors[epsilon_factor];
    weight -= factors[step_size] * impl::quick_quotient(first, root);
  }

  KOKKOS_FUNCTION A update_element(std::int64_t e) const {
    const A gradient = static_cast<A>(gradients[e]);
    if (factors[skip_factor] != A(0)) return gradient * gradient;
    A weight, first = static_cast<A>(first_moment[e]), second = static_cast<A>(second_moment[e]);
    if constexpr (Master)
      weight = master[e];
    else
      weight = static_cast<A>(weights[e]);
    update(weight, gradient, first, second, e < decayed);
    if constexpr (Master) master[e] = weight;
    weights[e] = static_cast<T>(weight);
    first_moment[e] = static_cast<S>(first);
    second_moment[e] = static_cast<S>(second);
    return gradient * gradient;
  }

  KOKKOS_FUNCTION A update_packet(std::int64_t item) const {
    // All loads before anything depends on one.
    const auto gradient = backend::load_packet<Width>(gradients, item);
    auto first = backend::load_packet<Width>(first_moment, item);
    auto second = backend::load_packet<Width>(second_moment, item);
    backend::Packet<T, Width> weight;
    backend::Packet<A, Width> exact;
    if constexpr (Master)
      exact = backend::load_packet<Width>(master, item);
    else
      weight = backend::load_packet<Width>(weights, item);
    A squares(0);
    for (int i = 0; i < Width; ++i) squares += static_cast<A>(gradient[i]) * static_cast<A>(gradient[i]);
    if (factors[skip_factor] != A(0)) return squares;
    for (int i = 0; i < Width; ++i) {
      A w, m = static_cast<A>(first[i]), v = static_cast<A>(second[i]);
      if constexpr (Master)
        w = exact[i];
      else
        w = static_cast<A>(weight[i]);
      update(w, static_cast<A>(gradient[i]), m, v, item * Width + i < decayed);
      exact[i] = w;
      weight[i] = static_cast<T>(w);
      first[i] = static_cast<S>(m);
      second[i] = static_cast<S>(v);
    }
    if constexpr (Master) backend::store_packet(master, item, exact);
    backend::store_packet(weights, item, weight);
    backend::store_packet(first_moment, item, first);
    backend::store_packet(second_moment, item, second);
    return squares;
  }
};

/// The same, with a sum of the gradients' squares for every elements_of_partial of them. On a GPU it is made by the
/// lanes of a warp: a barrier in each block takes a fifth of the bandwidth.
template <class Update>
struct AdamwShares {
  using A = typename Update::A;
  static constexpr int threads = 256;
  static constexpr std::int64_t items_of_partial = elements_of_partial / Update::width;
  static constexpr int lanes = impl::smaller(32, static_cast<int>(items_of_partial));
  /// Partials of a team.
  template <class Space>
  static constexpr std::int64_t partials_of = backend::is_host_space<Space> ? 1 : threads / lanes;

  Update update;
  A* partials;
  std::int64_t count;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const impl::LaneGroups<lanes, Team> of(team);
    const std::int64_t partial = team.league_rank() * of.groups + of.group;
    const std::int64_t begin = partial * items_of_partial;
    A sum(0);
    for (std::int64_t item = begin + of.lane; item < begin + items_of_partial; item += of.lanes)
      if (item < update.items()) sum += update.update_item(item);
    sum = of.sum(sum);
    if (of.lane == 0 && partial < count) partials[partial] = sum;
  }
};

}  // namespace

std::int64_t adamw_partial_count(std::int64_t elements) {
  return impl::rounded_up_quotient(elements, elements_of_partial);
}
std::int64_t adamw_factor_count() { return factor_count; }

template <class Space, class A>
void adamw_prepare(Stream<Space>& stream, Vector<const double, Space> partials, AdamwScalars scalars,
                   double* gradient_norm, Vector<A, Space> factors) {
  impl::require_shape(
      (impl::is_empty(partials) || gradient_norm != nullptr) && impl::is_vector(factors, factor_count),
      "adamw_prepare: factors must have adamw_factor_count() elements, and partials a place for their norm");
  using backend::read;
  const std::size_t norms = impl::is_empty(partials) ? 0 : 1;
  launch(stream, "optimizer/prepare",
         {read(partials), read(scalars.learning_rate, 1), read(scalars.weight_decay, 1),
          read(scalars.beta1, 1), read(scalars.beta2, 1), read(scalars.epsilon, 1), read(scalars.clip, 1),
          read(scalars.step, 1), read(scalars.gradient_scale, 1), read(scalars.skip_above, 1),
          read(scalars.hold, scalars.hold == nullptr ? 0 : 1), backend::write(gradient_norm, norms),
          backend::write(factors)},
         backend::Teams<256>{1},
         AdamwPrepare<A>{partials.data(), impl::rows_of(partials), scalars, gradient_norm, factors.data()});
}

template <class Space, class T, class G, class S>
void adamw(Stream<Space>& stream, Vector<const G, Space> gradients,
           Vector<const Accumulator<T>, Space> factors, Vector<T, Space> weights,
           Vector<Accumulator<T>, Space> master, Vector<S, Space> first_moment,
           Vector<S, Space> second_moment, std::int64_t decayed, Vector<Accumulator<T>, Space> partials) {
  const std::int64_t size = impl::rows_of(weights);
  impl::require_shape(impl::is_vector(weights, size) && impl::is_vector(gradients, size) &&
                          (impl::is_empty(master) || impl::is_vector(master, size)) &&
                          impl::is_vector(first_moment, size) && impl::is_vector(second_moment, size),
                      "adamw: weights, master weights, gradients and moments must have the same length");
  impl::require_shape(
      impl::is_vector(factors, factor_count) && decayed >= 0 && decayed <= size,
      "adamw: factors must have adamw_factor_count() elements, and decayed lie in [0, elements]");
  impl::require_shape(impl::is_empty(partials) || impl::is_vector(partials, adamw_partial_count(size)),
                      "adamw: partials must be empty or have adamw_partial_count(elements) elements");
  const auto queue = [&](auto width, auto with_master) {
    using Update = Adamw<width, with_master, T, G, S>;
    const Update update{gradients.data(),    factors.data(),       weights.data(), master.data(),
                        first_moment.data(), second_moment.data(), size,           decayed};
    const auto queue_over = [&](auto shape, const auto& functor) {
      launch(stream, "optimizer/adamw",
             {backend::read(gradients), backend::read(factors),
              with_master ? backend::read(master) : backend::read(weights), backend::read(first_moment),
              backend::read(second_moment), backend::write(weights), backend::write(master),
              backend::write(first_moment), backend::write(second_moment), backend::write(partials)},
             shape, functor);
    };
    if (impl::is_empty(partials)) {
      queue_over(backend::Range{update.items()}, update);
    } else {
      using Shares = AdamwShares<Update>;
      const std::int64_t count = impl::rows_of(partials);
      constexpr std::int64_t of_team = Shares::template partials_of<Space>;
      queue_over(backend::Teams<Shares::threads>{impl::rounded_up_quotient(count, of_team)},
                 Shares{update, partials.data(), count});
    }
  };
  if (impl::is_empty(master)) {
    impl::with_packet_width<Space>(
        0, [&](auto width) { queue(width, std::false_type{}); }, weights.data(), gradients.data(),
        first_moment.data(), second_moment.data());
  } else {
    impl::with_packet_width<Space>(
        0, [&](auto width) { queue(width, std::true_type{}); }, weights.data(), gradients.data(),
        first_moment.data(), second_moment.data(), master.data());
  }
}

#define ENCORE_INSTANTIATE(SPACE, A)                                                                        \
  template void adamw_prepare<SPACE, A>(Stream<SPACE>&, Vector<const double, SPACE>, AdamwScalars, double*, \
                                        Vector<A, SPACE>);
#define ENCORE_INSTANTIATE_FLOAT(SPACE) ENCORE_INSTANTIATE(SPACE, float)
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE_FLOAT)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double))
#undef ENCORE_INSTANTIATE_FLOAT
#undef ENCORE_INSTANTIATE

#define ENCORE_INSTANTIATE(SPACE, T, G, S)                                                               \
  template void adamw<SPACE, T, G, S>(Stream<SPACE>&, Vector<const G, SPACE>,                            \
                                      Vector<const Accumulator<T>, SPACE>, Vector<T, SPACE>,             \
                                      Vector<Accumulator<T>, SPACE>, Vector<S, SPACE>, Vector<S, SPACE>, \
                                      std::int64_t, Vector<Accumulator<T>, SPACE>);
#define ENCORE_INSTANTIATE_SPACE(SPACE)                \
  ENCORE_INSTANTIATE(SPACE, float, float, float)       \
  ENCORE_INSTANTIATE(SPACE, float, float, bfloat16)    \
  ENCORE_INSTANTIATE(SPACE, bfloat16, float, float)    \
  ENCORE_INSTANTIATE(SPACE, bfloat16, float, bfloat16) \
  ENCORE_INSTANTIATE(SPACE, bfloat16, bfloat16, float) \
  ENCORE_INSTANTIATE(SPACE, bfloat16, bfloat16, bfloat16)
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE_SPACE)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double, double, double))
#undef ENCORE_INSTANTIATE_SPACE
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
