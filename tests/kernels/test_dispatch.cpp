// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/dispatch.hpp>

#include "random_values.hpp"
#include "routing_cases.hpp"
#include "spaces.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

std::vector<double> as_doubles(const std::vector<std::int32_t>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE(
    "dispatch gives each pair its row in order of experts, then of pairs, and drops what finds no room") {
  HostAgreement agreement;
  for_each_space([&]<class Space>(Types<Space>) {
    const std::vector<Routing> cases = routing_cases();
    for (const Routing& routing : cases) {
      INFO(routing.name);
      INFO(routing.capacity);
      KernelRun<Space> run;
      const auto experts = run.template input<std::int32_t>(routing.chosen, routing.topk);
      const auto rows = output_rows(run, routing);
      const auto workspace = run.template workspace<std::int32_t>(
          kernels::dispatch_workspace_rows(routing.tokens, routing.topk), routing.experts);
      agreement.add<Space>(routing.name + std::to_string(routing.capacity), run.execute([&] {
        kernels::dispatch<Space>(run.stream(), experts, routing.capacity, rows, workspace);
      }));
      const ReferenceRows expected(routing);
      CHECK(run.values(rows.begins) == as_doubles(expected.begins));
      CHECK(run.values(rows.ends) == as_doubles(expected.ends));
      CHECK(run.values(rows.source) == as_doubles(expected.source));
      CHECK(run.values(rows.row_of) == as_doubles(expected.row_of));
      CHECK(run.values(backend::Vector<std::int32_t, Space>(rows.needed, 1))[0] == expected.needed);
    }
  });
}

TEST_CASE("a replay of dispatch follows a routing that changed, however extreme") {
  for_each_space([]<class Space>(Types<Space>) {
    Routing routing{"", 200, 3, 9, 0, 500};
    routing.draw(1);
    backend::Stream<Space> stream;
    TestArray<Space, std::int32_t> experts(stream, routing.chosen),
        begins(stream, std::vector<std::int32_t>(9)), ends(stream, std::vector<std::int32_t>(9)),
        source(stream, std::vector<std::int32_t>(500)), row_of(stream, std::vector<std::int32_t>(600)),
        needed(stream, std::vector<std::int32_t>(1));
    const std::int64_t workspace_rows = kernels::dispatch_workspace_rows(200, 3);
    TestArray<Space, std::int32_t> workspace(stream, std::vector<std::int32_t>(workspace_rows * 9));
    using Vector = backend::Vector<std::int32_t, Space>;
    using Matrix = backend::Matrix<std::int32_t, Space>;
    backend::RecordedGraph<Space> graph(stream, "test", [&] {
      kernels::dispatch<Space>(stream, Matrix(experts.data(), 200, 3), 0,
                               {Vector(begins.data(), 9), Vector(ends.data(), 9), Vector(source.data(), 500),
                                Matrix(row_of.data(), 200, 3), needed.data()},
                               Matrix(workspace.data(), workspace_rows, 9));
    });
    const auto check = [&] {
      experts.set(routing.chosen);
      graph.replay();
      const ReferenceRows expected(routing);
      CHECK(begins.get() == expected.begins);
      CHECK(ends.get() == expected.ends);
      CHECK(source.get() == expected.source);
      CHECK(row_of.get() == expected.row_of);
      CHECK(needed.get()[0] == expected.needed);
    };
    check();
    for (const std::int32_t expert : std::vector<std::int32_t>{0, 8, -1, 4}) {
      routing.chosen.assign(600, expert);
      check();
    }
    routing.draw(2);
    check();
  });
}

TEST_CASE("gathered rows are those of their pairs' tokens, and rows without a source stay as they are") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    const std::vector<Routing> cases = routing_cases();
    for (const Routing& routing : cases) {
      if (routing.tokens > 1000) continue;
      for (const std::int64_t hidden : {1, 7, 64, 264}) {
        INFO(routing.name);
        const auto x = normal_values<T>(routing.tokens * hidden, 1);
        const ReferenceRows reference(routing);
        std::vector<double> expected(routing.rows * hidden);
        for (std::int64_t r = 0; r < routing.rows; ++r)
          if (reference.source[r] >= 0)
            std::copy_n(x.begin() + reference.source[r] / routing.topk * hidden, hidden,
                        expected.begin() + r * hidden);
        KernelRun<Space> run;
        const auto rows = input_rows(run, routing);
        const auto input = run.template input<T>(x, hidden);
        const auto output = run.template output<T>(routing.rows, hidden);
        const auto queue = [&] { kernels::gather_rows<Space, T>(run.stream(), input, rows.row_of, output); };
        if (routing.rows == 0) {
          queue();
          continue;
        }
        agreement.add<Space>(routing.name + std::to_string(routing.capacity) + " " + std::to_string(hidden) +
                                 std::to_string(sizeof(T)),
                             run.execute(queue));
        check_rows(routing, run.values(output), expected, hidden, {0, 0});
      }
    }
  });
}

TEST_CASE("the gradient of gathered rows comes back to their tokens, set or added") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    const std::vector<Routing> cases = routing_cases();
    for (const Routing& routing : cases) {
      if (routing.tokens > 1000 || routing.rows == 0) continue;
      for (const std::int64_t hidden : {1, 7, 64, 264}) {
        for (const bool accumulate : {false, true}) {
          INFO(routing.name);
          const auto gradient = poisoned(routing, normal_values<T>(routing.rows * hidden, 1), hidden);
          const auto before = normal_values<T>(routing.tokens * hidden, 2);
          const ReferenceRows reference(routing);
          std::vector<double> expected(before.size());
          if (accumulate) expected = before;
          for (std::size_t pair = 0; pair < routing.chosen.size(); ++pair)
            for (std::int64_t c = 0; c < hidden && reference.row_of[pair] >= 0; ++c)
              expected[pair / routing.topk * hidden + c] += gradient[reference.row_of[pair] * hidden + c];
          KernelRun<Space> run;
          const auto rows = input_rows(run, routing);
          const auto rows_gradient = run.template input<T>(gradient, hidden);
          const auto result = accumulate ? run.template in_out<T>(before, hidden)
                                         : run.template output<T>(routing.tokens, hidden);
          agreement.add<Space>(routing.name + std::to_string(routing.capacity) + " " +
                                   std::to_string(hidden) + (accumulate ? " added " : " set ") +
                                   std::to_string(sizeof(T)),
                               run.execute([&] {
                                 kernels::gather_rows_backward<Space, T>(run.stream(), rows_gradient,
                                                                         rows.row_of, result, accumulate);
                               }));
          check_close(run.values(result), expected, tolerance<T>());
        }
      }
    }
  });
}

TEST_CASE("dispatch refuses shapes that do not fit before anything runs") {
  for_each_space([]<class Space>(Types<Space>) {
    Routing routing{"", 10, 2, 4, 8, 31};
    routing.draw(1);
    KernelRun<Space> run;
    const auto experts = run.template input<std::int32_t>(routing.chosen, 2);
    const auto rows = output_rows(run, routing);
    const auto workspace = run.template workspace<std::int32_t>(1, 4),
               narrow = run.template workspace<std::int32_t>(1, 3);
    CHECK_THROWS_AS(kernels::dispatch<Space>(run.stream(), experts, 8, rows, workspace), ConfigurationError);
    CHECK_THROWS_AS(kernels::dispatch<Space>(run.stream(), experts, 0, rows, narrow), ConfigurationError);
    const auto input = run.template output<float>(10, 6), output = run.template output<float>(31, 5);
    CHECK_THROWS_AS((kernels::gather_rows<Space, float>(run.stream(), input, rows.row_of, output)),
                    ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
