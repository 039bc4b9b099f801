// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/expert_exchange.hpp>

#include "random_values.hpp"
#include "routing_cases.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

template <class Space>
using Indices = backend::Matrix<const std::int32_t, Space>;

/// Calls `check(Types<Space, A>)` for the types that router weights have.
template <class Check>
void for_each_space_and_weight(const Check& check) {
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    if constexpr (std::is_same_v<backend::Accumulator<T>, T>) check(Types<Space, T>());
  });
}

}  // namespace

TEST_CASE("experts are numbered by groups of neighbours, and none stays none") {
  HostAgreement agreement;
  for_each_space([&]<class Space>(Types<Space>) {
    for (const Routing& routing : routing_cases())
      for (const std::int64_t size : {1, 2, 5}) {
        INFO(routing.name);
        std::vector<double> expected;
        for (const std::int32_t expert : routing.chosen) expected.push_back(expert < 0 ? -1 : expert / size);
        KernelRun<Space> run;
        const auto experts = run.template input<std::int32_t>(routing.chosen, routing.topk);
        const auto groups = run.template output<std::int32_t>(routing.tokens, routing.topk);
        agreement.add<Space>(
            routing.name + std::to_string(routing.capacity) + " " + std::to_string(size),
            run.execute([&] { kernels::group_experts<Space>(run.stream(), experts, size, groups); }));
        CHECK(run.values(groups) == expected);
      }
  });
}

TEST_CASE("a message has each slot's weight and expert, and comes out as this rank's experts alone") {
  HostAgreement agreement;
  for_each_space_and_weight([&]<class Space, class A>(Types<Space, A>) {
    for (const Routing& routing : routing_cases())
      for (const std::int64_t ranks : {1, 3})
        for (const bool by_pair : {false, true}) {
          INFO(routing.name);
          const std::int64_t pairs = routing.tokens * routing.topk;
          if (routing.rows == 0 || (by_pair && pairs % ranks != 0)) continue;
          const ReferenceRows reference(routing);
          const auto w = normal_values<A>(pairs, 1);
          // In the order of pairs those without a row are left out; slots are rows, with some at the end for even shares.
          std::vector<std::int32_t> source;
          if (by_pair)
            for (std::int64_t pair = 0; pair < pairs; ++pair)
              source.push_back(reference.row_of[pair] < 0 ? -1 : static_cast<std::int32_t>(pair));
          else
            source.assign(reference.source.begin(), reference.source.end());
          while (source.size() % ranks != 0) source.push_back(-1);
          const auto slots = static_cast<std::int64_t>(source.size()), of_rank = slots / ranks;
          const std::int64_t first = routing.experts / 2, count = (routing.experts + 3) / 4;
          std::vector<double> sent(2 * slots), experts_here(slots), weights_here(slots);
          for (std::int64_t slot = 0; slot < slots; ++slot) {
            const std::int64_t to = slot / of_rank * 2 * of_rank + slot % of_rank;
            const std::int32_t pair = source[slot];
            const std::int64_t expert = pair < 0 ? -1 : routing.chosen[pair];
            sent[to] = weights_here[slot] = pair < 0 ? 0 : w[pair];
            sent[to + of_rank] = static_cast<double>(expert);
            experts_here[slot] = expert >= first && expert < first + count ? double(expert - first) : -1;
          }
          KernelRun<Space> run;
          const auto experts = run.template input<std::int32_t>(routing.chosen, routing.topk);
          const auto weights = run.template input<A>(w, routing.topk);
          backend::Vector<const std::int32_t, Space> slot_source;
          Indices<Space> row_of;
          if (by_pair)
            row_of = run.template input<std::int32_t>(reference.row_of, routing.topk);
          else
            slot_source = run.template input<std::int32_t>(source);
          const auto message = run.template output<A>(ranks, 2 * of_rank);
          const auto arrived = run.template output<std::int32_t>(slots, 1);
          const auto arrived_weights = run.template output<A>(slots, 1);
          agreement.add<Space>(routing.name + std::to_string(routing.capacity) + " " + std::to_string(ranks) +
                                   (by_pair ? " pairs " : " slots ") + std::to_string(sizeof(A)),
                               run.execute([&] {
                                 kernels::pack_routing<Space, A>(run.stream(), experts, weights, slot_source,
                                                                 row_of, message);
                                 kernels::unpack_routing<Space, A>(run.stream(), message, first, count,
                                                                   arrived, arrived_weights);
                               }));
          CHECK(run.values(message) == sent);
          CHECK(run.values(arrived) == experts_here);
          CHECK(run.values(arrived_weights) == weights_here);
        }
  });
}

TEST_CASE(
    "values of slots come back to their pairs, and pairs without a slot get zero whatever stands elsewhere") {
  HostAgreement agreement;
  for_each_space_and_weight([&]<class Space, class A>(Types<Space, A>) {
    for (const Routing& routing : routing_cases()) {
      INFO(routing.name);
      if (routing.rows == 0) continue;
      const ReferenceRows reference(routing);
      const auto v = poisoned(routing, normal_values<A>(routing.rows, 1), 1);
      std::vector<double> expected;
      for (const std::int32_t row : reference.row_of) expected.push_back(row < 0 ? 0 : v[row]);
      KernelRun<Space> run;
      const auto values = run.template input<A>(v);
      const auto row_of = run.template input<std::int32_t>(reference.row_of, routing.topk);
      const auto result = run.template output<A>(routing.tokens, routing.topk);
      agreement.add<Space>(
          routing.name + std::to_string(routing.capacity) + " " + std::to_string(sizeof(A)),
          run.execute([&] { kernels::values_of_pairs<Space, A>(run.stream(), values, row_of, result); }));
      CHECK(run.values(result) == expected);
    }
  });
}

TEST_CASE("an exchange of routing refuses shapes that do not fit before anything runs") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto experts = run.template output<std::int32_t>(4, 2),
               fewer = run.template output<std::int32_t>(3, 2);
    const auto weights = run.template output<float>(4, 2), message = run.template output<float>(2, 8),
               longer = run.template output<float>(2, 10);
    CHECK_THROWS_AS(kernels::group_experts<Space>(run.stream(), experts, 2, fewer), ConfigurationError);
    CHECK_THROWS_AS((kernels::pack_routing<Space, float>(run.stream(), experts, weights, {}, {}, longer)),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::pack_routing<Space, float>(run.stream(), experts, weights, {}, fewer, message)),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::unpack_routing<Space, float>(run.stream(), longer, 0, 2, experts, weights)),
                    ConfigurationError);
    CHECK_THROWS_AS(
        (kernels::values_of_pairs<Space, float>(run.stream(), run.template output<float>(8), fewer, weights)),
        ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
