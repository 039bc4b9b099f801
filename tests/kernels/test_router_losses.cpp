// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "router_problem.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;
using kernels::RouterRules;
using kernels::RouterScore;

namespace {

/// A routed microbatch in device memory: everything between the logits and the losses.
template <class Space, class A>
struct Losses {
  const RouterProblem& problem;
  backend::Matrix<const A, Space> logits;
  backend::Vector<const A, Space> bias;
  backend::Vector<const std::int32_t, Space> live;
  backend::Matrix<A, Space> weights;
  backend::Matrix<std::int32_t, Space> experts;
  backend::Vector<A, Space> log_sums;
  backend::Vector<std::int32_t, Space> counts;
  backend::Vector<A, Space> probabilities;
  backend::Vector<double, Space> totals, balance, z;
  backend::Matrix<A, Space> workspace;

  Losses(KernelRun<Space>& run, const RouterProblem& of) : problem(of) {
    logits = run.template input<A>(of.logits, of.experts);
    if (!of.bias.empty()) bias = run.template input<A>(of.bias);
    if (!of.live.empty()) live = run.template input<std::int32_t>(of.live);
    weights = run.template output<A>(of.tokens, of.rules.topk);
    experts = run.template output<std::int32_t>(of.tokens, of.rules.topk);
    log_sums = run.template output<A>(of.tokens);
    counts = run.template output<std::int32_t>(of.experts);
    probabilities = run.template output<A>(of.experts);
    totals = run.template output<double>(kernels::router_total_count());
    balance = run.template in_out<double>(std::vector<double>{0.5});
    z = run.template in_out<double>(std::vector<double>{0.25});
    workspace = run.template workspace<A>(kernels::router_workspace_rows(of.tokens), of.experts);
  }

  void queue(backend::Stream<Space>& stream, double factor, bool accumulate) const {
    kernels::router_forward<Space, A>(stream, problem.rules, logits, bias, live, weights, experts, log_sums);
    kernels::router_statistics<Space, A>(stream, problem.rules, logits, log_sums, experts, live, counts,
                                         probabilities, totals, workspace);
    kernels::router_losses<Space, A>(stream, problem.rules, counts, probabilities, totals, factor,
                                     balance.data(), z.data(), accumulate);
  }
};

struct ReferenceStatistics {
  std::vector<double> counts, probabilities;
  double live = 0, squares = 0;

  /// `experts` as the kernel chose them.
  ReferenceStatistics(const RouterProblem& problem, const std::vector<double>& experts)
      : counts(problem.experts), probabilities(problem.experts) {
    for (const double e : experts)
      if (e >= 0) ++counts[static_cast<std::size_t>(e)];
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      if (!problem.is_live(t)) continue;
      live += 1;
      squares += problem.log_sum_exp(t) * problem.log_sum_exp(t);
      const auto p = problem.probabilities(t);
      for (std::int64_t e = 0; e < problem.experts; ++e) probabilities[e] += p[e];
    }
  }

  double balance_loss(const RouterProblem& problem) const {
    return static_cast<double>(problem.experts) * weighted_sum(counts, probabilities) /
           (static_cast<double>(problem.rules.topk) * live * live);
  }
};

std::vector<RouterProblem> loss_problems() {
  std::vector<RouterProblem> problems = router_problems();
  problems.push_back({"many tokens", 5003, 7, RouterRules{RouterScore::softmax, 2, true}, false, true});
  problems.push_back({"many sigmoids", 1025, 40, RouterRules{RouterScore::sigmoid, 3, true}, true, true});
  return problems;
}

template <class Body>
void for_each_space_and_accumulator(const Body& body) {
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    if constexpr (!std::is_same_v<T, backend::bfloat16>) body(Types<Space, T>{});
  });
}

}  // namespace

TEST_CASE(
    "router statistics count pairs and sum probabilities over live tokens, and the losses follow from them") {
  HostAgreement agreement;
  for_each_space_and_accumulator([&]<class Space, class A>(Types<Space, A>) {
    const std::vector<RouterProblem> problems = loss_problems();
    for (RouterProblem problem : problems) {
      INFO(problem.name);
      problem.draw<A>(9);
      if (problem.padded)
        for (std::int64_t e = 0; e < problem.experts; ++e)
          problem.logits[e] = std::nan("");  // Token 0 is padding.
      for (const bool accumulate : {false, true}) {
        KernelRun<Space> run;
        const Losses<Space, A> losses(run, problem);
        agreement.add<Space>(problem.name + std::to_string(sizeof(A)) + (accumulate ? " added" : ""),
                             run.execute([&] { losses.queue(run.stream(), 0.5, accumulate); }));
        const ReferenceStatistics expected(problem, run.values(losses.experts));
        CHECK(run.values(losses.counts) == expected.counts);
        check_close(run.values(losses.probabilities), expected.probabilities, tolerance<A>());
        const auto totals = run.values(losses.totals);
        CHECK(totals[0] == expected.live);
        check_close({totals[1]}, {expected.squares}, tolerance<A>());
        check_close(run.values(losses.balance),
                    {(accumulate ? 0.5 : 0.0) + 0.5 * expected.balance_loss(problem)}, tolerance<A>());
        check_close(run.values(losses.z),
                    {(accumulate ? 0.25 : 0.0) + 0.5 * expected.squares / expected.live}, tolerance<A>());
      }
    }
  });
}

TEST_CASE("an even load has a balance loss of 1, all tokens at one expert nearly E, and no live token 0") {
  for_each_space_and_accumulator([]<class Space, class A>(Types<Space, A>) {
    RouterProblem problem{"", 64, 16, RouterRules{RouterScore::softmax, 1}};
    const auto loss = [&] {
      KernelRun<Space> run;
      const Losses<Space, A> losses(run, problem);
      run.execute([&] { losses.queue(run.stream(), 1, false); });
      CHECK(run.values(losses.z)[0] >= 0);
      return run.values(losses.balance)[0];
    };
    problem.logits.assign(64 * 16, 0.0);
    for (int t = 0; t < 64; ++t) problem.logits[16 * t + t % 16] = 30;
    CHECK(loss() == doctest::Approx(1).epsilon(1e-6));
    problem.logits.assign(64 * 16, 0.0);
    for (int t = 0; t < 64; ++t) problem.logits[16 * t + 5] = 30;
    CHECK(loss() == doctest::Approx(16).epsilon(1e-6));
    problem.live.assign(64, 0);
    CHECK(loss() == 0);
  });
}

TEST_CASE("the router's gradient is that of its weights and of both losses, in every type it is stored in") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    const std::vector<RouterProblem> problems = loss_problems();
    for (RouterProblem problem : problems) {
      INFO(problem.name);
      problem.draw<A>(21);
      const auto [tokens, experts, topk] = std::tuple(problem.tokens, problem.experts, problem.rules.topk);
      const auto upstream = normal_values<A>(tokens * topk, 4);
      const double balance_coefficient = 0.75, z_coefficient = 0.125, factor = 0.5;
      KernelRun<Space> run;
      const Losses<Space, A> losses(run, problem);
      const auto gradient = run.template input<A>(upstream, topk);
      const auto coefficients =
          run.template input<double>(std::vector<double>{balance_coefficient, z_coefficient});
      const auto result = run.template output<T>(tokens, experts),
                 plain = run.template output<T>(tokens, experts);
      agreement.add<Space>(problem.name + std::to_string(sizeof(T)), run.execute([&] {
        losses.queue(run.stream(), 1, false);
        kernels::router_backward<Space, T>(run.stream(), problem.rules, losses.logits, losses.log_sums,
                                           losses.experts, losses.live, gradient, losses.counts,
                                           losses.totals, coefficients.data(), coefficients.data() + 1,
                                           factor, result);
        kernels::router_backward<Space, T>(run.stream(), problem.rules, losses.logits, losses.log_sums,
                                           losses.experts, losses.live, gradient, {}, {}, nullptr, nullptr,
                                           factor, plain);
      }));
      const auto chosen = run.values(losses.experts);
      const ReferenceStatistics statistics(problem, chosen);
      std::vector<double> of_weights(tokens * experts), of_all(tokens * experts);
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (!problem.is_live(t)) continue;
        const std::vector<std::int32_t> own(chosen.begin() + t * topk, chosen.begin() + (t + 1) * topk);
        const auto weights = problem.weights(t, own);
        const auto scores = problem.scores(t), probabilities = problem.probabilities(t);
        double* row = of_weights.data() + t * experts;
        const bool renormalized =
            problem.rules.renormalize || problem.rules.score == RouterScore::softmax_of_largest;
        double weighted = 0, weight_sum = 0;
        for (std::int64_t k = 0; k < topk; ++k) weighted += upstream[t * topk + k] * weights[k];
        for (std::int64_t k = 0; k < topk; ++k) weight_sum += weights[k];
        // d log(score) / d logit is 1 - score for a sigmoid and, up to a term common to all, 1 for a softmax.
        for (std::int64_t k = 0; k < topk; ++k) {
          const double shared = renormalized ? weighted / weight_sum : 0;
          row[own[k]] += weights[k] * (upstream[t * topk + k] - shared) *
                         (problem.is_sigmoid() ? 1 - scores[own[k]] : 1);
        }
        if (!problem.is_sigmoid() && !renormalized)
          for (std::int64_t e = 0; e < experts; ++e) row[e] -= scores[e] * weighted;
        const double pull = factor * balance_coefficient * static_cast<double>(experts) /
                            (static_cast<double>(topk) * statistics.live * statistics.live);
        double mean = 0;
        for (std::int64_t e = 0; e < experts; ++e) mean += statistics.counts[e] * probabilities[e];
        for (std::int64_t e = 0; e < experts; ++e) {
          const double slope = problem.is_sigmoid() ? 1 - scores[e] : 1;
          const double softmax = std::exp(problem.row(t)[e] - problem.log_sum_exp(t));
          of_all[t * experts + e] =
              row[e] + pull * (statistics.counts[e] - mean) * probabilities[e] * slope +
              factor * z_coefficient * 2 / statistics.live * problem.log_sum_exp(t) * softmax;
        }
      }
      check_close(run.values(result), of_all, tolerance<T>());
      // Of a softmax over all that are chosen little is left but rounding.
      if (problem.experts > 1) check_close(run.values(plain), of_weights, tolerance<T>());
    }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("the router's gradient in double agrees with finite differences through weights and losses") {
  using Space = backend::Serial;
  std::vector<RouterProblem> problems;
  problems.push_back({"softmax", 5, 6, RouterRules{RouterScore::softmax, 2, false, 1, 1, 1.5}, false, true});
  problems.push_back({"renormalized", 5, 6, RouterRules{RouterScore::softmax, 3, true}});
  problems.push_back({"largest", 4, 7, RouterRules{RouterScore::softmax_of_largest, 3}, false, true});
  problems.push_back({"sigmoid", 5, 8, RouterRules{RouterScore::sigmoid, 2, false, 4, 2}, true, true});
  problems.push_back(
      {"renormalized sigmoid", 5, 8, RouterRules{RouterScore::sigmoid, 3, true, 2, 1, 2.5}, true});
  for (RouterProblem& problem : problems) {
    INFO(problem.name);
    problem.draw<double>(31);
    const auto upstream = normal_values<double>(problem.tokens * problem.rules.topk, 4);
    const double factor = 0.5;
    const std::vector<double> coefficients{0.75, 0.125};
    KernelRun<Space> run;
    const Losses<Space, double> losses(run, problem);
    const auto gradient = run.input<double>(upstream, problem.rules.topk);
    const auto scalars = run.input<double>(coefficients);
    const auto result = run.output<double>(problem.tokens, problem.experts);
    run.execute([&] {
      losses.queue(run.stream(), 1, false);
      kernels::router_backward<Space, double>(
          run.stream(), problem.rules, losses.logits, losses.log_sums, losses.experts, losses.live, gradient,
          losses.counts, losses.totals, scalars.data(), scalars.data() + 1, factor, result);
    });
    check_gradient(
        [&](const std::vector<double>& point) {
          RouterProblem moved = problem;
          moved.logits = point;
          KernelRun<Space> forward;
          const Losses<Space, double> of(forward, moved);
          forward.execute([&] { of.queue(forward.stream(), factor, false); });
          return weighted_sum(forward.values(of.weights), upstream) +
                 coefficients[0] * forward.values(of.balance)[0] + coefficients[1] * forward.values(of.z)[0];
        },
        problem.logits, run.values(result));
  }
}
#endif

TEST_CASE("padding tokens have a zero gradient even if their logits and upstream gradients are NaN") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    RouterProblem problem{"", 6, 10, RouterRules{RouterScore::sigmoid, 2, true}, false, true};
    problem.draw<A>(2);
    auto upstream = normal_values<A>(12, 4);
    for (int e = 0; e < 10; ++e) problem.logits[e] = problem.logits[30 + e] = std::nan("");
    upstream[0] = upstream[7] = std::nan("");
    KernelRun<Space> run;
    const Losses<Space, A> losses(run, problem);
    const auto gradient = run.template input<A>(upstream, 2);
    const auto coefficient = run.template input<double>(std::vector<double>{1});
    const auto result = run.template output<T>(6, 10);
    run.execute([&] {
      losses.queue(run.stream(), 1, false);
      kernels::router_backward<Space, T>(run.stream(), problem.rules, losses.logits, losses.log_sums,
                                         losses.experts, losses.live, gradient, losses.counts, losses.totals,
                                         coefficient.data(), coefficient.data(), 1, result);
    });
    const auto values = run.values(result);
    for (int i = 0; i < 60; ++i) {
      const int token = i / 10;
      CHECK(std::isfinite(values[i]));
      if (token % 3 == 0) CHECK(values[i] == 0);
    }
  });
}
