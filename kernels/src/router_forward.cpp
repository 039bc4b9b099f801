// SPDX-License-Identifier: Apache-2.0
#include <Kokkos_BitManipulation.hpp>

#include "lanes.hpp"
#include "router_rules.hpp"

#include <limits>

namespace encore::kernels {

namespace {

/// Numbers as unsigned integers of the same order, NaN above all. 0 belongs to no number: it marks an expert
/// that cannot be chosen any more.
template <class A>
struct RankOrder {
  using Integer = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  static constexpr Integer sign = Integer(1) << (8 * sizeof(A) - 1);

  KOKKOS_FUNCTION static Integer of(A value) {
    if (value != value) return ~Integer(0);
    const auto bits = Kokkos::bit_cast<Integer>(value + A(0));  // -0 is equal to 0.
    return (bits & sign) != 0 ? ~bits : bits | sign;
  }
  KOKKOS_FUNCTION static A value(Integer order) {
    return Kokkos::bit_cast<A>((order & sign) != 0 ? order ^ sign : ~order);
  }
};

template <class A>
struct RouterForward {
  using Order = RankOrder<A>;
  using Integer = typename Order::Integer;

  const A* logits;
  const A* selection_bias;
  const std::int32_t* live;
  A* weights;
  std::int32_t* chosen;
  A* log_sum_exp;
  std::int64_t experts, topk, groups, topk_groups;
  A scale;
  bool sigmoid, renormalize;

  std::size_t scratch_bytes() const {
    return (experts + groups) * sizeof(Integer) + topk * (sizeof(A) + sizeof(std::int32_t));
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t token = team.league_rank();
    A* weight = weights + token * topk;
    std::int32_t* expert = chosen + token * topk;
    if (live != nullptr && live[token] == 0) {
      team.for_each(topk, [=](std::int64_t k) {
        weight[k] = A(0);
        expert[k] = -1;
      });
      if (team.rank() == 0) log_sum_exp[token] = A(0);
      return;
    }
    const A* row = logits + token * experts;
    const A maximum = team.template max_over<A>(experts, std::numeric_limits<A>::lowest(),
                                                [=](std::int64_t e) { return row[e]; });
    const A log_sum = maximum + Kokkos::log(team.template sum_over<A>(experts, [=](std::int64_t e) {
                        return impl::exponential(row[e] - maximum);
                      }));
    if (team.rank() == 0) log_sum_exp[token] = log_sum;

    auto* orders = team.template scratch<Integer>();
    A* scores = reinterpret_cast<A*>(orders + experts + groups);
    auto* found = reinterpret_cast<std::int32_t*>(scores + topk);
    rank_experts(team, row, log_sum, orders);
    if (groups > 1) keep_best_groups(team, orders, orders + experts);
    take_best(team, orders, found);
    team.barrier();
    const bool by_sigmoid = sigmoid;
    team.for_each(topk, [=](std::int64_t k) {
      expert[k] = found[k];
      scores[k] = impl::router_score(by_sigmoid, row[found[k]], log_sum);
    });
    team.barrier();
    A factor = scale;
    if (renormalize) {
      A sum(0);
      for (std::int64_t k = 0; k < topk; ++k) sum += scores[k];
      factor = scale / (sum + impl::score_floor<A>);
    }
    team.for_each(topk, [=](std::int64_t k) { weight[k] = scores[k] * factor; });
  }

 private:
  /// The scores rise with the logits, which tell more experts apart, so those decide where they can.
  template <class Team>
  KOKKOS_FUNCTION void rank_experts(const Team& team, const A* row, A log_sum, Integer* orders) const {
    if (selection_bias == nullptr && (groups == 1 || !sigmoid)) {
      team.for_each(experts, [=](std::int64_t e) { orders[e] = Order::of(row[e]); });
    } else {
      const A* bias = selection_bias;
      const bool by_sigmoid = sigmoid;
      team.for_each(experts, [=](std::int64_t e) {
        const A score = impl::router_score(by_sigmoid, row[e], log_sum);
        orders[e] = Order::of(bias == nullptr ? score : score + bias[e]);
      });
    }
  }

  template <class Team>
  KOKKOS_FUNCTION void keep_best_groups(const Team& team, Integer* orders, Integer* group_orders) const {
    const std::int64_t size = experts / groups;
    const bool two = size > 1 && (sigmoid || selection_bias != nullptr);
    team.barrier();
    team.for_each(groups, [=](std::int64_t g) {
      Integer first = 0, second = 0;
      for (std::int64_t e = g * size; e < (g + 1) * size; ++e) {
        const Integer order = orders[e];
        if (order > first) {
          second = first;
          first = order;
        } else if (order > second) {
          second = order;
        }
      }
      group_orders[g] = two ? Order::of(Order::value(first) + Order::value(second)) : first;
    });
    team.barrier();
    const std::int64_t count = groups, kept = topk_groups;
    team.for_each(count, [=](std::int64_t g) {
      std::int64_t better = 0;
      for (std::int64_t h = 0; h < count; ++h)
        better += group_orders[h] > group_orders[g] || (group_orders[h] == group_orders[g] && h < g) ? 1 : 0;
      if (better < kept) return;
      for (std::int64_t e = g * size; e < (g + 1) * size; ++e) orders[e] = 0;
    });
    team.barrier();
  }

  /// The experts of highest order, the first of equal ones first. An expert that is taken is out of the contest. On a
  /// GPU each lane knows the best of its own experts, and only the one that has lost it looks again.
  template <class Team>
  KOKKOS_FUNCTION void take_best(const Team& team, Integer* orders, std::int32_t* found) const {
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t k = 0; k < topk; ++k) {
        std::int64_t best = 0;
        for (std::int64_t e = 1; e < experts; ++e)
          if (orders[e] > orders[best]) best = e;
        orders[best] = 0;
        found[k] = static_cast<std::int32_t>(best);
      }
    } else {
      constexpr std::uint32_t none = ~0U;
      const auto count = static_cast<std::uint32_t>(experts);
      std::uint32_t order = 0, expert = none;
      const auto look = [&] {
        order = 0;
        expert = none;
        for (auto e = static_cast<std::uint32_t>(team.rank()); e < count; e += Team::size()) {
          const auto candidate = static_cast<std::uint32_t>(orders[e]);
          if (candidate > order) {
            order = candidate;
            expert = e;
          }
        }
      };
      look();
      for (std::int64_t k = 0; k < topk; ++k) {
        const std::uint32_t highest = impl::Warp::largest(order);
        const std::uint32_t best = impl::Warp::smallest(order == highest ? expert : none);
        if (team.rank() == 0) found[k] = static_cast<std::int32_t>(best);
        if (expert != best) continue;
        orders[best] = 0;
        look();
      }
    }
  }
};

}  // namespace

template <class Space, class A>
void router_forward(Stream<Space>& stream, const RouterRules& rules, Matrix<const A, Space> logits,
                    Vector<const A, Space> selection_bias, Vector<const std::int32_t, Space> live,
                    Matrix<A, Space> weights, Matrix<std::int32_t, Space> experts,
                    Vector<A, Space> log_sum_exp) {
  const std::int64_t tokens = impl::rows_of(logits), count = impl::columns_of(logits);
  impl::require_rules(rules, count);
  impl::require_shape(
      impl::is_matrix(logits, tokens, count) && impl::is_matrix(weights, tokens, rules.topk) &&
          impl::is_matrix(experts, tokens, rules.topk) && impl::is_vector(log_sum_exp, tokens),
      "router_forward: logits must be [tokens, experts], weights and experts [tokens, topk], log_sum_exp "
      "[tokens]");
  impl::require_shape((impl::is_empty(selection_bias) || impl::is_vector(selection_bias, count)) &&
                          (impl::is_empty(live) || impl::is_vector(live, tokens)),
                      "router_forward: selection_bias must be [experts] or empty, live [tokens] or empty");
  const RouterForward<A> functor{logits.data(),
                                 selection_bias.data(),
                                 live.data(),
                                 weights.data(),
                                 experts.data(),
                                 log_sum_exp.data(),
                                 count,
                                 rules.topk,
                                 rules.groups,
                                 rules.topk_groups,
                                 static_cast<A>(rules.scale),
                                 rules.score == RouterScore::sigmoid,
                                 impl::renormalizes(rules)};
  launch(stream, "router/forward",
         {backend::read(logits), backend::read(selection_bias), backend::read(live), backend::write(weights),
          backend::write(experts), backend::write(log_sum_exp)},
         backend::Teams<impl::router_threads>{tokens, functor.scratch_bytes()}, functor);
}

#define ENCORE_INSTANTIATE(SPACE, A)                                                                 \
  template void router_forward<SPACE, A>(Stream<SPACE>&, const RouterRules&, Matrix<const A, SPACE>, \
                                         Vector<const A, SPACE>, Vector<const std::int32_t, SPACE>,  \
                                         Matrix<A, SPACE>, Matrix<std::int32_t, SPACE>, Vector<A, SPACE>);
#define ENCORE_INSTANTIATE_FLOAT(SPACE) ENCORE_INSTANTIATE(SPACE, float)
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE_FLOAT)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double))
#undef ENCORE_INSTANTIATE_FLOAT
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
