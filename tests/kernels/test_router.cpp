// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include "kernel_run.hpp"
#include "router_problem.hpp"
#include "spaces.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

#include <limits>

using namespace encore;
using namespace encore::tests;
using kernels::RouterRules;
using kernels::RouterScore;

namespace {

template <class Space, class A>
struct Routed {
  KernelRun<Space> run;
  backend::Matrix<A, Space> weights;
  backend::Matrix<std::int32_t, Space> experts;
  backend::Vector<A, Space> log_sum_exp;
  std::vector<std::byte> bytes;

  explicit Routed(const RouterProblem& problem) {
    const auto logits = run.template input<A>(problem.logits, problem.experts);
    backend::Vector<const A, Space> bias;
    backend::Vector<const std::int32_t, Space> live;
    if (!problem.bias.empty()) bias = run.template input<A>(problem.bias);
    if (!problem.live.empty()) live = run.template input<std::int32_t>(problem.live);
    weights = run.template output<A>(problem.tokens, problem.rules.topk);
    experts = run.template output<std::int32_t>(problem.tokens, problem.rules.topk);
    log_sum_exp = run.template output<A>(problem.tokens);
    bytes = run.execute([&] {
      kernels::router_forward<Space, A>(run.stream(), problem.rules, logits, bias, live, weights, experts,
                                        log_sum_exp);
    });
  }
};

/// The types that routers compute in: bfloat16 models route in float.
template <class Body>
void for_each_space_and_accumulator(const Body& body) {
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    if constexpr (!std::is_same_v<T, backend::bfloat16>) body(Types<Space, T>{});
  });
}

/// Whether `chosen` are the experts that the reference ranks highest, best first; ranks that a rounding can swap
/// count as equal.
void check_choice(std::vector<double> ranks, const std::vector<std::int32_t>& chosen, double rounding) {
  std::vector<double> sorted = ranks;
  std::sort(sorted.rbegin(), sorted.rend());
  for (std::size_t k = 0; k < chosen.size(); ++k) {
    REQUIRE(chosen[k] >= 0);
    REQUIRE(chosen[k] < static_cast<std::int32_t>(ranks.size()));
    CHECK(std::abs(ranks[chosen[k]] - sorted[k]) <= rounding);
    ranks[chosen[k]] = -INFINITY;  // Not a second time.
  }
}

}  // namespace

TEST_CASE("a router chooses the experts of the highest ranks and weights them by its rules") {
  HostAgreement agreement;
  for_each_space_and_accumulator([&]<class Space, class A>(Types<Space, A>) {
    const std::vector<RouterProblem> problems = router_problems();
    for (RouterProblem problem : problems) {
      INFO(problem.name);
      problem.draw<A>(5);
      Routed<Space, A> routed(problem);
      agreement.add<Space>(problem.name + std::to_string(sizeof(A)), routed.bytes);
      const auto experts = routed.run.values(routed.experts);
      const std::int64_t topk = problem.rules.topk;
      std::vector<double> weights, log_sums;
      for (std::int64_t t = 0; t < problem.tokens; ++t) {
        std::vector<std::int32_t> chosen(experts.begin() + t * topk, experts.begin() + (t + 1) * topk);
        if (!problem.is_live(t)) {
          CHECK(chosen == std::vector<std::int32_t>(topk, -1));
          weights.insert(weights.end(), topk, 0.0);
          log_sums.push_back(0);
          continue;
        }
        check_choice(problem.ranks(t), chosen, 2 * tolerance<A>().norm);
        const auto expected = problem.weights(t, chosen);
        weights.insert(weights.end(), expected.begin(), expected.end());
        log_sums.push_back(problem.log_sum_exp(t));
      }
      check_close(routed.run.values(routed.weights), weights, tolerance<A>());
      check_close(routed.run.values(routed.log_sum_exp), log_sums, tolerance<A>());
    }
  });
}

TEST_CASE("of equal ranks a router takes the lower index, of experts and of groups") {
  for_each_space_and_accumulator([]<class Space, class A>(Types<Space, A>) {
    RouterProblem plain{"", 2, 70, RouterRules{RouterScore::softmax, 5, true}};
    plain.logits.assign(140, 1.5);
    plain.logits[69] = 2;
    for (int e = 0; e < 70; ++e) plain.logits[70 + e] = e % 2 == 0 ? 0.0 : -0.0;
    Routed<Space, A> routed(plain);
    CHECK(routed.run.values(routed.experts) == std::vector<double>{69, 0, 1, 2, 3, 0, 1, 2, 3, 4});

    RouterProblem grouped{"", 1, 12, RouterRules{RouterScore::sigmoid, 4, false, 4, 2}, true};
    grouped.logits.assign(12, 0.25);
    grouped.bias.assign(12, 0.0);
    grouped.bias[7] = 0.5;
    Routed<Space, A> by_group(grouped);
    CHECK(by_group.run.values(by_group.experts) == std::vector<double>{7, 0, 1, 2});
  });
}

TEST_CASE("the selection bias decides who is chosen but not the weight") {
  for_each_space_and_accumulator([]<class Space, class A>(Types<Space, A>) {
    RouterProblem problem{"", 1, 4, RouterRules{RouterScore::sigmoid, 2, true}, true};
    problem.logits = {3, 2, 1, 0};
    problem.bias = {-1, 0, 0, 1};
    Routed<Space, A> routed(problem);
    CHECK(routed.run.values(routed.experts) == std::vector<double>{3, 1});
    check_close(routed.run.values(routed.weights), problem.weights(0, {3, 1}), tolerance<A>());
  });
}

TEST_CASE("extreme logits keep a router's choice distinct and in range, and NaN stays visible") {
  for_each_space_and_accumulator([]<class Space, class A>(Types<Space, A>) {
    const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
    for (const RouterScore score : std::vector{RouterScore::softmax, RouterScore::sigmoid}) {
      RouterProblem problem{"", 4, 40, RouterRules{score, 8, true, 4, 2}};
      problem.logits.assign(160, 0.0);
      for (int e = 0; e < 40; ++e) {
        problem.logits[e] = nan;
        problem.logits[40 + e] = -1e30 * e;
        problem.logits[80 + e] = e == 11 ? 1e4 : -infinity;
        problem.logits[120 + e] = e == 33 ? nan : 0.1 * e;
      }
      Routed<Space, A> routed(problem);
      const auto experts = routed.run.values(routed.experts), weights = routed.run.values(routed.weights);
      for (int t = 0; t < 4; ++t) {
        std::vector<double> chosen(experts.begin() + 8 * t, experts.begin() + 8 * (t + 1));
        std::sort(chosen.begin(), chosen.end());
        CHECK(std::adjacent_find(chosen.begin(), chosen.end()) == chosen.end());
        CHECK(chosen.front() >= 0);
        CHECK(chosen.back() < 40);
      }
      CHECK(std::isnan(weights[0]));
      CHECK(weights[8] == doctest::Approx(1).epsilon(1e-6));
      CHECK(experts[16] == 11);
      CHECK(experts[24] == 33);
      CHECK(std::isnan(weights[24]));
    }
  });
}

TEST_CASE("padding tokens get no expert whatever their logits hold, and a replay follows changed logits") {
  for_each_space_and_accumulator([]<class Space, class A>(Types<Space, A>) {
    RouterProblem problem{"", 6, 20, RouterRules{RouterScore::softmax, 4, true}, false, true};
    problem.draw<A>(3);
    for (int e = 0; e < 20; ++e) problem.logits[3 * 20 + e] = std::nan("");
    Routed<Space, A> routed(problem);
    const auto weights = routed.run.values(routed.weights);
    for (int k = 0; k < 4; ++k) CHECK(weights[3 * 4 + k] == 0);

    backend::Stream<Space> stream;
    TestArray<Space, A> logits(stream, std::vector<A>(problem.logits.begin(), problem.logits.end()));
    TestArray<Space, std::int32_t> live(stream, problem.live),
        experts(stream, std::vector<std::int32_t>(24, 77));
    TestArray<Space, A> weight(stream, std::vector<A>(24)), log_sum(stream, std::vector<A>(6));
    backend::RecordedGraph<Space> graph(stream, "test", [&] {
      kernels::router_forward<Space, A>(stream, problem.rules,
                                        backend::Matrix<const A, Space>(logits.data(), 6, 20), {},
                                        backend::Vector<const std::int32_t, Space>(live.data(), 6),
                                        backend::Matrix<A, Space>(weight.data(), 6, 4),
                                        backend::Matrix<std::int32_t, Space>(experts.data(), 6, 4),
                                        backend::Vector<A, Space>(log_sum.data(), 6));
    });
    std::vector<A> changed(120);
    for (int t = 0; t < 6; ++t)
      for (int e = 0; e < 20; ++e) changed[20 * t + e] = static_cast<A>(t == 5 ? -e : e);
    logits.set(changed);
    live.set({0, 1, 1, 1, 0, 1});
    graph.replay();
    const std::vector<std::int32_t> none(4, -1), last{19, 18, 17, 16}, first{0, 1, 2, 3};
    std::vector<std::int32_t> expected;
    for (const auto* row : std::vector{&none, &last, &last, &last, &none, &first})
      expected.insert(expected.end(), row->begin(), row->end());
    CHECK(experts.get() == expected);
  });
}

TEST_CASE("a router refuses rules and shapes that do not fit before anything runs") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto logits = run.template output<float>(4, 12);
    const auto weights = run.template output<float>(4, 3);
    const auto experts = run.template output<std::int32_t>(4, 3);
    const auto log_sum = run.template output<float>(4);
    const auto route = [&](const RouterRules& rules) {
      kernels::router_forward<Space, float>(run.stream(), rules, logits, {}, {}, weights, experts, log_sum);
    };
    CHECK_THROWS_AS(route({RouterScore::softmax, 2}), ConfigurationError);
    CHECK_THROWS_AS(route({RouterScore::softmax, 13}), ConfigurationError);
    CHECK_THROWS_AS(route({RouterScore::softmax, 3, true, 5, 1}), ConfigurationError);
    CHECK_THROWS_AS(route({RouterScore::softmax, 3, true, 6, 1}), ConfigurationError);
    CHECK_THROWS_AS(route({RouterScore::softmax, 3, true, 4, 5}), ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
