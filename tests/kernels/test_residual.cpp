// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/residual.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

TEST_CASE("a residual sum adds element by element, also in place") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const std::int64_t columns : {1, 7, 8, 333}) {
      const auto a = normal_values<T>(3 * columns, 1), b = normal_values<T>(3 * columns, 2);
      std::vector<double> sum(a.size());
      for (std::size_t i = 0; i < a.size(); ++i) sum[i] = static_cast<double>(static_cast<T>(a[i] + b[i]));
      KernelRun<Space> run;
      const auto first = run.template input<T>(a, columns), second = run.template input<T>(b, columns);
      const auto output = run.template output<T>(3, columns);
      const auto a_place = run.template in_out<T>(a, columns), b_place = run.template in_out<T>(b, columns);
      agreement.add<Space>(std::to_string(columns) + " of " + std::to_string(sizeof(T)), run.execute([&] {
        kernels::add<Space, T>(run.stream(), first, second, output);
        kernels::add<Space, T>(run.stream(), a_place, second, a_place);
        kernels::add<Space, T>(run.stream(), first, b_place, b_place);
      }));
      CHECK(run.values(output) == sum);
      CHECK(run.values(a_place) == sum);
      CHECK(run.values(b_place) == sum);
    }
  });
}

TEST_CASE("a residual sum works on addresses that are aligned to the element only") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    const auto a = normal_values<T>(41, 1), b = normal_values<T>(41, 2);
    KernelRun<Space> run;
    const auto first = run.template input<T>(a), second = run.template input<T>(b);
    const auto output = run.template in_out<T>(std::vector<double>(41, 5.0));
    using In = backend::Matrix<const T, Space>;
    run.execute([&] {
      kernels::add<Space, T>(run.stream(), In(first.data() + 1, 4, 10), In(second.data() + 1, 4, 10),
                             backend::Matrix<T, Space>(output.data() + 1, 4, 10));
    });
    const auto result = run.values(output);
    CHECK(result[0] == 5.0);
    for (int i = 1; i < 41; ++i) CHECK(result[i] == static_cast<double>(static_cast<T>(a[i] + b[i])));
  });
}

TEST_CASE("a residual sum of different shapes is refused") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto a = run.template output<float>(2, 6), b = run.template output<float>(3, 4);
    CHECK_THROWS_AS((kernels::add<Space, float>(run.stream(), a, b, a)), ConfigurationError);
  });
}
