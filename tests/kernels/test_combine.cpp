// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/combine.hpp>

#include "random_values.hpp"
#include "routing_cases.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

TEST_CASE("combined tokens are their experts' rows plus the shared expert plus the residual stream") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    const std::vector<Routing> cases = routing_cases();
    for (const Routing& routing : cases) {
      if (routing.tokens > 1000 || routing.rows == 0) continue;
      for (const std::int64_t hidden : {1, 7, 64, 264}) {
        for (const int addends : {0, 1, 2, 3}) {
          INFO(routing.name);
          const bool with_addend = addends % 2 == 1, with_shared = addends / 2 == 1;
          const auto y = poisoned(routing, normal_values<T>(routing.rows * hidden, 1), hidden);
          const auto residual = normal_values<T>(routing.tokens * hidden, 2);
          const auto dense = normal_values<T>(routing.tokens * hidden, 3);
          const ReferenceRows reference(routing);
          std::vector<double> expected(residual.size());
          for (std::size_t i = 0; i < expected.size(); ++i)
            expected[i] = (with_addend ? residual[i] : 0) + (with_shared ? dense[i] : 0);
          for (std::size_t pair = 0; pair < routing.chosen.size(); ++pair)
            for (std::int64_t c = 0; c < hidden && reference.row_of[pair] >= 0; ++c)
              expected[pair / routing.topk * hidden + c] += y[reference.row_of[pair] * hidden + c];
          KernelRun<Space> run;
          const auto rows = input_rows(run, routing);
          const auto expert_output = run.template input<T>(y, hidden);
          backend::Matrix<const T, Space> addend, shared;
          if (with_addend) addend = run.template input<T>(residual, hidden);
          if (with_shared) shared = run.template input<T>(dense, hidden);
          const auto output = run.template output<T>(routing.tokens, hidden);
          const auto in_place = run.template in_out<T>(residual, hidden);
          agreement.add<Space>(routing.name + std::to_string(routing.capacity) + " " +
                                   std::to_string(hidden) + std::to_string(addends) +
                                   std::to_string(sizeof(T)),
                               run.execute([&] {
                                 kernels::combine_forward<Space, T>(run.stream(), expert_output, rows.row_of,
                                                                    addend, shared, output);
                                 kernels::combine_forward<Space, T>(run.stream(), expert_output, rows.row_of,
                                                                    in_place, shared, in_place);
                               }));
          check_close(run.values(output), expected, tolerance<T>());
          if (with_addend) CHECK(run.values(in_place) == run.values(output));
        }
      }
    }
  });
}

TEST_CASE("combining refuses shapes that do not fit before anything runs") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto rows = run.template output<float>(9, 6), other = run.template output<float>(4, 5);
    const auto row_of = run.template output<std::int32_t>(4, 2),
               short_row_of = run.template output<std::int32_t>(3, 2);
    const auto output = run.template output<float>(4, 6);
    CHECK_THROWS_AS(
        (kernels::combine_forward<Space, float>(run.stream(), rows, short_row_of, {}, {}, output)),
        ConfigurationError);
    CHECK_THROWS_AS((kernels::combine_forward<Space, float>(run.stream(), rows, row_of, other, {}, output)),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::combine_forward<Space, float>(run.stream(), other, row_of, {}, {}, output)),
                    ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
