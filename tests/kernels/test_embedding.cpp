// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/embedding.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

#include <algorithm>
#include <numeric>

using namespace encore;
using namespace encore::tests;

namespace {

std::vector<std::int32_t> stable_order(const std::vector<std::int32_t>& ids) {
  std::vector<std::int32_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return ids[a] < ids[b]; });
  return order;
}

/// Ids with chosen runs: `count` tokens in [0, vocabulary), `often` of which are the id `favourite`.
std::vector<std::int32_t> some_ids(std::int64_t count, std::int32_t vocabulary, std::int64_t often,
                                   std::int32_t favourite) {
  std::vector<std::int32_t> ids = integer_values(count, 0, vocabulary - 1, 7);
  std::fill_n(ids.begin(), often, favourite);
  std::mt19937 generator(8);
  std::shuffle(ids.begin(), ids.end(), generator);
  return ids;
}

struct Case {
  std::int64_t tokens, hidden;
  std::int32_t vocabulary;
  std::int64_t often;
};
/// Single tokens, runs that end with a chunk of 8 or 32, cross one end, or cover several whole chunks.
constexpr Case cases[] = {{1, 1, 3, 0},       {5, 7, 2, 0},         {8, 12, 1, 0},    {9, 4, 1, 0},
                          {32, 8, 1, 0},      {33, 8, 1, 0},        {96, 64, 3, 0},   {128, 100, 50, 64},
                          {500, 130, 9, 300}, {700, 768, 1000, 20}, {1000, 16, 1, 0}, {1000, 1032, 40, 999}};

std::string name_of(const Case& c) {
  return std::to_string(c.tokens) + " tokens, hidden " + std::to_string(c.hidden) + ", vocabulary " +
         std::to_string(c.vocabulary) + ", " + std::to_string(c.often) + " times the same";
}

}  // namespace

TEST_CASE("a token's embedding is its row of the table plus the row of its position") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const std::int64_t hidden : {1, 7, 8, 64, 1032}) {
      const std::int64_t tokens = 26, sequence = 10, vocabulary = 12;
      const auto table = normal_values<T>(vocabulary * hidden, 1);
      const auto positions = normal_values<T>((sequence + 3) * hidden, 2);
      const auto ids = some_ids(tokens, vocabulary, 5, 11);
      std::vector<double> plain(tokens * hidden), placed(tokens * hidden);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t c = 0; c < hidden; ++c) {
          plain[t * hidden + c] = table[ids[t] * hidden + c];
          placed[t * hidden + c] = static_cast<double>(
              static_cast<T>(table[ids[t] * hidden + c] + positions[t % sequence * hidden + c]));
        }
      }
      KernelRun<Space> run;
      const auto id_view = run.template input<std::int32_t>(ids);
      const auto table_view = run.template input<T>(table, hidden);
      const auto position_view = run.template input<T>(positions, hidden);
      const auto without = run.template output<T>(tokens, hidden),
                 with = run.template output<T>(tokens, hidden);
      agreement.add<Space>(std::to_string(hidden) + " of " + std::to_string(sizeof(T)), run.execute([&] {
        kernels::embedding_forward<Space, T>(run.stream(), id_view, table_view, {}, sequence, without);
        kernels::embedding_forward<Space, T>(run.stream(), id_view, table_view, position_view, sequence,
                                             with);
      }));
      CHECK(run.values(without) == plain);
      CHECK(run.values(with) == placed);
    }
  });
}

TEST_CASE("the token order is the stable sort of the ids") {
  for_each_space([]<class Space>(Types<Space>) {
    for (const std::int64_t tokens : {1, 2, 3, 31, 32, 33, 63, 257, 1000, 5003}) {
      for (const std::int32_t vocabulary : {1, 3, 50, 100000}) {
        const auto ids = some_ids(tokens, vocabulary, tokens / 3, vocabulary / 2);
        KernelRun<Space> run;
        const auto id_view = run.template input<std::int32_t>(ids);
        const auto order = run.template output<std::int32_t>(tokens);
        run.execute([&] { kernels::token_order<Space>(run.stream(), id_view, order); });
        const auto expected = stable_order(ids);
        CHECK(run.values(order) == std::vector<double>(expected.begin(), expected.end()));
      }
    }
  });
}

TEST_CASE(
    "the table gradient sums each id's tokens and leaves unused rows zero, or untouched when it is added") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    using A = backend::Accumulator<T>;
    for (const Case& c : cases) {
      for (const bool accumulate : {false, true}) {
        const std::string name = name_of(c) + (accumulate ? " added " : " set ") + std::to_string(sizeof(T)) +
                                 std::to_string(sizeof(G));
        INFO(name);
        const auto ids = some_ids(c.tokens, c.vocabulary, c.often, c.vocabulary / 2);
        const auto dy = normal_values<T>(c.tokens * c.hidden, 1);
        const auto before = normal_values<G>(c.vocabulary * c.hidden, 2);
        std::vector<double> sum(before.size());
        if (accumulate) sum = before;
        for (std::int64_t t = 0; t < c.tokens; ++t)
          for (std::int64_t i = 0; i < c.hidden; ++i) sum[ids[t] * c.hidden + i] += dy[t * c.hidden + i];

        KernelRun<Space> run;
        const auto id_view = run.template input<std::int32_t>(ids);
        const auto order = run.template input<std::int32_t>(stable_order(ids));
        const auto gradient = run.template input<T>(dy, c.hidden);
        const auto table_gradient = accumulate ? run.template in_out<G>(before, c.hidden)
                                               : run.template output<G>(c.vocabulary, c.hidden);
        const auto workspace =
            run.template workspace<A>(kernels::embedding_workspace_rows(c.tokens), c.hidden);
        agreement.add<Space>(name, run.execute([&] {
          kernels::embedding_backward<Space, T, G>(run.stream(), id_view, order, gradient, table_gradient,
                                                   workspace, accumulate);
        }));
        const auto result = run.values(table_gradient);
        check_close(result, sum, tolerance<G>());
        std::vector<bool> used(c.vocabulary);
        for (const std::int32_t id : ids) used[id] = true;
        bool unused_rows_stand = true;
        for (std::int64_t i = 0; i < c.vocabulary * c.hidden; ++i)
          unused_rows_stand =
              unused_rows_stand && (used[i / c.hidden] || result[i] == (accumulate ? before[i] : 0));
        CHECK(unused_rows_stand);
      }
    }
  });
}

TEST_CASE("the position gradient sums over sequences, the last of which may be cut short") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const std::int64_t hidden : {1, 7, 64, 200, 1032}) {
      for (const bool accumulate : {false, true}) {
        const std::int64_t tokens = 38, sequence = 10, rows = 13;
        const auto dy = normal_values<T>(tokens * hidden, 1);
        const auto before = normal_values<G>(rows * hidden, 2);
        std::vector<double> sum(rows * hidden);
        if (accumulate) sum = before;
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t c = 0; c < hidden; ++c) sum[t % sequence * hidden + c] += dy[t * hidden + c];
        KernelRun<Space> run;
        const auto gradient = run.template input<T>(dy, hidden);
        const auto result =
            accumulate ? run.template in_out<G>(before, hidden) : run.template output<G>(rows, hidden);
        agreement.add<Space>(std::to_string(sizeof(T)) + std::to_string(sizeof(G)) + " " +
                                 std::to_string(hidden) + (accumulate ? " added" : " set"),
                             run.execute([&] {
                               kernels::position_embedding_backward<Space, T, G>(
                                   run.stream(), gradient, sequence, result, accumulate);
                             }));
        check_close(run.values(result), sum, tolerance<G>());
      }
    }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("embedding gradients in double agree with finite differences") {
  using Space = backend::Serial;
  const std::int64_t tokens = 9, hidden = 3, vocabulary = 4, sequence = 4;
  const std::vector<std::int32_t> ids{2, 0, 2, 3, 2, 2, 0, 3, 2};
  const auto point = normal_values<double>((vocabulary + sequence) * hidden, 1);
  const auto c = normal_values<double>(tokens * hidden, 2);
  KernelRun<Space> run;
  const auto id_view = run.input<std::int32_t>(ids);
  const auto order = run.workspace<std::int32_t>(tokens, 1);
  const backend::Vector<std::int32_t, Space> order_view(order.data(), tokens);
  const auto gradient = run.input<double>(c, hidden);
  const auto table_gradient = run.output<double>(vocabulary, hidden);
  const auto position_gradient = run.output<double>(sequence, hidden);
  const auto workspace = run.workspace<double>(kernels::embedding_workspace_rows(tokens), hidden);
  run.execute([&] {
    kernels::token_order<Space>(run.stream(), id_view, order_view);
    kernels::embedding_backward<Space, double, double>(run.stream(), id_view, order_view, gradient,
                                                       table_gradient, workspace, false);
    kernels::position_embedding_backward<Space, double, double>(run.stream(), gradient, sequence,
                                                                position_gradient, false);
  });
  std::vector<double> both = run.values(table_gradient);
  const auto second = run.values(position_gradient);
  both.insert(both.end(), second.begin(), second.end());
  check_gradient(
      [&](const std::vector<double>& at) {
        KernelRun<Space> forward;
        const auto middle = at.begin() + vocabulary * hidden;
        const auto in = forward.input<std::int32_t>(ids);
        const auto table = forward.input<double>(std::vector<double>(at.begin(), middle), hidden);
        const auto positions = forward.input<double>(std::vector<double>(middle, at.end()), hidden);
        const auto output = forward.output<double>(tokens, hidden);
        forward.execute([&] {
          kernels::embedding_forward<Space, double>(forward.stream(), in, table, positions, sequence, output);
        });
        return weighted_sum(forward.values(output), c);
      },
      point, both);
}
#endif

TEST_CASE("embedding kernels refuse operands that do not fit") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto ids = run.template output<std::int32_t>(4), order = run.template output<std::int32_t>(3);
    const auto table = run.template output<float>(9, 6), output = run.template output<float>(4, 6);
    const auto positions = run.template output<float>(2, 6);
    CHECK_THROWS_AS(
        (kernels::embedding_forward<Space, float>(run.stream(), ids, table, positions, 3, output)),
        ConfigurationError);
    CHECK_THROWS_AS(kernels::token_order<Space>(run.stream(), ids, order), ConfigurationError);
    CHECK_THROWS_AS(
        (kernels::embedding_backward<Space, float, float>(run.stream(), ids, ids, output, table, {}, true)),
        ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
