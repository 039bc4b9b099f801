// SPDX-License-Identifier: Apache-2.0
#include "router_rules.hpp"

namespace encore::kernels {

namespace {

constexpr std::int64_t most_shares = 128;
/// Tokens whose sums of sigmoids a team holds at a time.
constexpr int block_tokens = 32;

/// Sums over one share of the tokens. On a GPU a thread takes an expert's column; where there are fewer
/// experts than threads, several take turns at the tokens.
template <class A>
struct ShareStatistics {
  static constexpr int threads = 128;

  const A* logits;
  const A* log_sum_exp;
  const std::int32_t* chosen;
  const std::int32_t* live;
  A* probability_parts;  ///< [shares, experts]
  A* count_parts;        ///< [shares, experts], whole numbers
  std::int64_t shares, tokens, experts, topk;
  bool sigmoid;

  std::size_t scratch_bytes() const {
    return experts * (sizeof(A) + sizeof(std::int32_t)) + (block_tokens + threads) * sizeof(A);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t share = team.league_rank();
    const std::int64_t begin = tokens * share / shares, end = tokens * (share + 1) / shares;
    A* sums = team.template scratch<A>();
    A* scales = sums + experts;
    A* parts = scales + block_tokens;
    auto* counts = reinterpret_cast<std::int32_t*>(parts + threads);
    team.for_each(experts, [=](std::int64_t e) {
      sums[e] = A(0);
      counts[e] = 0;
    });
    team.barrier();
    count_pairs(team, begin * topk, end * topk, counts);
    for (std::int64_t block = begin; block < end; block += block_tokens) {
      const int count = static_cast<int>(end - block < block_tokens ? end - block : block_tokens);
      scale_tokens(team, block, count, scales);
      team.barrier();
      add_probabilities(team, block, count, scales, sums, parts);
      team.barrier();
    }
    A* probability_part = probability_parts + share * experts;
    A* count_part = count_parts + share * experts;
    team.for_each(experts, [=](std::int64_t e) {
      probability_part[e] = sums[e];
      count_part[e] = static_cast<A>(counts[e]);
    });
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void count_pairs(const Team& team, std::int64_t begin, std::int64_t end,
                                   std::int32_t* counts) const {
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t pair = begin; pair < end; ++pair)
        if (chosen[pair] >= 0) ++counts[chosen[pair]];
    } else {
      for (std::int64_t pair = begin + team.rank(); pair < end; pair += threads)
        if (chosen[pair] >= 0) Kokkos::atomic_inc(&counts[chosen[pair]]);
    }
  }

  /// What a token's scores count: 0 for padding, else 1 or the inverse of their sum.
  template <class Team>
  KOKKOS_FUNCTION void scale_tokens(const Team& team, std::int64_t block, int count, A* scales) const {
    for (int t = 0; t < count; ++t) {
      A scale = live == nullptr || live[block + t] != 0 ? A(1) : A(0);
      if (sigmoid && scale != A(0)) {
        const A* row = logits + (block + t) * experts;
        scale = 1 / (team.template sum_over<A>(experts, [=](std::int64_t e) {
                  return impl::logistic(row[e]);
                }) + impl::score_floor<A>);
      }
      if (team.rank() == 0) scales[t] = scale;
    }
  }

  template <class Team>
  KOKKOS_FUNCTION void add_probabilities(const Team& team, std::int64_t block, int count, const A* scales,
                                         A* sums, A* parts) const {
    const A* rows = logits + block * experts;
    const A* log_sums = log_sum_exp + block;
    const std::int64_t width = experts;
    const bool by_sigmoid = sigmoid;
    if constexpr (impl::is_host_team<Team>) {
      for (int t = 0; t < count; ++t) {
        if (scales[t] == A(0)) continue;  // Whatever the padding holds.
        const A* row = rows + t * width;
        const A scale = scales[t], log_sum = log_sums[t];
        team.for_each(width, [=](std::int64_t e) {
          sums[e] += scale * impl::router_score(by_sigmoid, row[e], log_sum);
        });
      }
    } else {
      int columns = 1;
      while (columns < threads && columns < width) columns *= 2;
      const int lanes = threads / columns, x = team.rank() % columns, y = team.rank() / columns;
      for (std::int64_t first = 0; first < width; first += columns) {
        const std::int64_t e = first + x;
        A sum(0);
        if (e < width)
          for (int t = y; t < count; t += lanes)
            if (scales[t] != A(0))
              sum += scales[t] * impl::router_score(by_sigmoid, rows[t * width + e], log_sums[t]);
        parts[team.rank()] = sum;
        team.barrier();
        if (y == 0 && e < width) {
          for (int lane = 1; lane < lanes; ++lane) sum += parts[lane * columns + x];
          sums[e] += sum;
        }
        team.barrier();
      }
    }
  }
};

/// Adds the shares up, 8 experts a team; the last team sums over tokens.
template <class A>
struct JoinStatistics {
  static constexpr int threads = 256;
  static constexpr int columns = 8;

  const A* probability_parts;
  const A* count_parts;
  const A* log_sum_exp;
  const std::int32_t* live;
  std::int32_t* tokens_of_expert;
  A* probability_sums;
  double* totals;
  std::int64_t shares, tokens, experts;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    if (team.league_rank() == impl::rounded_up_quotient(experts, columns)) return sum_tokens(team);
    const std::int64_t first = team.league_rank() * columns;
    if constexpr (impl::is_host_team<Team>) {
      const std::int64_t end = first + columns < experts ? first + columns : experts;
      for (std::int64_t e = first; e < end; ++e) {
        A sum(0), count(0);
        for (std::int64_t share = 0; share < shares; ++share) {
          sum += probability_parts[share * experts + e];
          count += count_parts[share * experts + e];
        }
        finish(e, sum, count);
      }
    } else {
      constexpr int lanes = threads / columns;
      const int x = team.rank() % columns, y = team.rank() / columns;
      A sum(0), count(0);
      if (first + x < experts) {
        for (std::int64_t share = y; share < shares; share += lanes) {
          sum += probability_parts[share * experts + first + x];
          count += count_parts[share * experts + first + x];
        }
      }
      A* scratch = team.template scratch<A>();
      scratch[team.rank()] = sum;
      scratch[threads + team.rank()] = count;
      team.barrier();
      if (y != 0 || first + x >= experts) return;
      for (int lane = 1; lane < lanes; ++lane) {
        sum += scratch[lane * columns + x];
        count += scratch[threads + lane * columns + x];
      }
      finish(first + x, sum, count);
    }
  }

 private:
  KOKKOS_FUNCTION void finish(std::int64_t expert, A sum, A count) const {
    probability_sums[expert] = sum;
    tokens_of_expert[expert] = static_cast<std::int32_t>(count);
  }

  template <class Team>
  KOKKOS_FUNCTION void sum_tokens(const Team& team) const {
    const std::int32_t* alive = live;
    const A* log_sums = log_sum_exp;
    const auto count = alive == nullptr ? static_cast<double>(tokens)
                                        : team.template sum_over<double>(tokens, [=](std::int64_t t) {
                                            return alive[t] != 0 ? 1.0 : 0.0;
                                          });
    const auto squares = team.template sum_over<double>(tokens, [=](std::int64_t t) {
      const auto value = static_cast<double>(log_sums[t]);
      return alive == nullptr || alive[t] != 0 ? value * value : 0.0;
    });
    if (team.rank() != 0) return;
    totals[0] = count;
    totals[1] = squares;
  }
};

template <class A>
struct RouterLosses {
  static constexpr int threads = 128;

  const std::int32_t* tokens_of_expert;
  const A* probability_sums;
  const double* totals;
  double* balance_loss;
  double* z_loss;
  std::int64_t experts, topk;
  double factor;
  bool accumulate;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t* counts = tokens_of_expert;
    const A* probabilities = probability_sums;
    const double overlap = team.template sum_over<double>(experts, [=](std::int64_t e) {
      return static_cast<double>(counts[e]) * static_cast<double>(probabilities[e]);
    });
    if (team.rank() != 0) return;
    const double live = totals[0];
    const double even = static_cast<double>(topk) * live * live / static_cast<double>(experts);
    store(balance_loss, live > 0 ? factor * overlap / even : 0.0);
    store(z_loss, live > 0 ? factor * totals[1] / live : 0.0);
  }

 private:
  KOKKOS_FUNCTION void store(double* loss, double value) const {
    if (loss != nullptr) *loss = accumulate ? *loss + value : value;
  }
};

}  // namespace

std::int64_t router_total_count() { return 2; }

std::int64_t router_workspace_rows(std::int64_t tokens) {
  const std::int64_t shares = impl::rounded_up_quotient(tokens, block_tokens);
  return 2 * (shares < 1 ? 1 : shares > most_shares ? most_shares : shares);
}

template <class Space, class A>
void router_statistics(Stream<Space>& stream, const RouterRules& rules, Matrix<const A, Space> logits,
                       Vector<const A, Space> log_sum_exp, Matrix<const std::int32_t, Space> experts,
                       Vector<const std::int32_t, Space> live, Vector<std::int32_t, Space> tokens_of_expert,
                       Vector<A, Space> probability_sums, Vector<double, Space> totals,
                       Matrix<A, Space> workspace) {
  const std::int64_t tokens = impl::rows_of(logits), count = impl::columns_of(logits);
  impl::require_rules(rules, count);
  impl::require_shape(
      impl::is_matrix(logits, tokens, count) && impl::is_vector(log_sum_exp, tokens) &&
          impl::is_matrix(experts, tokens, rules.topk) &&
          (impl::is_empty(live) || impl::is_vector(live, tokens)),
      "router_statistics: logits must be [tokens, experts], log_sum_exp [tokens], experts [tokens, "
      "topk], live [tokens] or empty");
  impl::require_shape(impl::is_vector(tokens_of_expert, count) && impl::is_vector(probability_sums, count) &&
                          impl::is_vector(totals, router_total_count()) &&
                          impl::has_rows(workspace, router_workspace_rows(tokens), count),
                      "router_statistics: tokens_of_expert and probability_sums must be [experts], totals "
                      "[router_total_count()], the workspace [router_workspace_rows(tokens), experts]");
  const std::int64_t shares = router_workspace_rows(tokens) / 2;
  A* probability_parts = workspace.data();
  A* count_parts = workspace.data() + shares * count;
  const ShareStatistics<A> share{logits.data(),
                                 log_sum_exp.data(),
                                 experts.data(),
                                 live.data(),
                                 probability_parts,
                                 count_parts,
                                 shares,
                                 tokens,
                                 count,
                                 rules.topk,
                                 rules.score == RouterScore::sigmoid};
  launch(stream, "router/statistics/shares",
         {backend::read(logits), backend::read(log_sum_exp), backend::read(experts), backend::read(live),
          backend::write(workspace)},
         backend::Teams<ShareStatistics<A>::threads>{shares, share.scratch_bytes()}, share);
  using Join = JoinStatistics<A>;
  launch(stream, "router/statistics/sum",
         {backend::read(workspace), backend::read(log_sum_exp), backend::read(live),
          backend::write(tokens_of_expert), backend::write(probability_sums), backend::write(totals)},
         backend::Teams<Join::threads>{impl::rounded_up_quotient(count, Join::columns) + 1,
                                       2 * Join::threads * sizeof(A)},
         Join{probability_parts, count_parts, log_sum_exp.data(), live.data(), tokens_of_expert.data(),
              probability_sums.data(), totals.data(), shares, tokens, count});
}

template <class Space, class A>
void router_losses(Stream<Space>& stream, const RouterRules& rules,
                   Vector<const std::int32_t, Space> tokens_of_expert,
                   Vector<const A, Space> probability_sums, Vector<const double, Space> totals, double factor,
                   double* balance_loss, double* z_loss, bool accumulate) {
  const std::int64_t count = impl::rows_of(tokens_of_expert);
  impl::require_rules(rules, count);
  impl::require_shape(impl::is_vector(tokens_of_expert, count) && impl::is_vector(probability_sums, count) &&
                          impl::is_vector(totals, router_total_count()),
                      "router_losses: tokens_of_expert and probability_sums must be [experts], totals "
                      "[router_total_count()]");
  launch(stream, "router/losses",
         {backend::read(tokens_of_expert), backend::read(probability_sums), backend::read(totals),
          backend::write(balance_loss, balance_loss == nullptr ? 0 : 1),
          backend::write(z_loss, z_loss == nullptr ? 0 : 1)},
         backend::Teams<RouterLosses<A>::threads>{1},
         RouterLosses<A>{tokens_of_expert.data(), probability_sums.data(), totals.data(), balance_loss,
                         z_loss, count, rules.topk, factor, accumulate});
}

#define ENCORE_INSTANTIATE(SPACE, A)                                                                        \
  template void router_statistics<SPACE, A>(Stream<SPACE>&, const RouterRules&, Matrix<const A, SPACE>,     \
                                            Vector<const A, SPACE>, Matrix<const std::int32_t, SPACE>,      \
                                            Vector<const std::int32_t, SPACE>, Vector<std::int32_t, SPACE>, \
                                            Vector<A, SPACE>, Vector<double, SPACE>, Matrix<A, SPACE>);     \
  template void router_losses<SPACE, A>(Stream<SPACE>&, const RouterRules&,                                 \
                                        Vector<const std::int32_t, SPACE>, Vector<const A, SPACE>,          \
                                        Vector<const double, SPACE>, double, double*, double*, bool);
#define ENCORE_INSTANTIATE_FLOAT(SPACE) ENCORE_INSTANTIATE(SPACE, float)
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE_FLOAT)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double))
#undef ENCORE_INSTANTIATE_FLOAT
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
