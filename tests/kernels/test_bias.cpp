// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/bias.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

struct Shape {
  std::int64_t tokens, columns;
};
constexpr Shape shapes[] = {{1, 1}, {1, 8}, {3, 7}, {33, 64}, {100, 257}, {1000, 768}, {4099, 40}};

}  // namespace

TEST_CASE("the bias gradient is the sum over tokens, set or added") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const auto& [tokens, columns] : shapes) {
      for (const bool accumulate : {false, true}) {
        const std::string name = std::to_string(tokens) + "x" + std::to_string(columns) +
                                 (accumulate ? " added" : " set") + std::to_string(sizeof(T)) +
                                 std::to_string(sizeof(G));
        INFO(name);
        const auto dy = normal_values<T>(tokens * columns, 1);
        const auto before = normal_values<G>(columns, 2);
        std::vector<double> sum(columns);
        if (accumulate) sum = before;
        for (std::int64_t i = 0; i < tokens * columns; ++i) sum[i % columns] += dy[i];

        KernelRun<Space> run;
        const auto gradient = run.template input<T>(dy, columns);
        const auto result = accumulate ? run.template in_out<G>(before) : run.template output<G>(columns);
        const auto workspace =
            run.template workspace<backend::Accumulator<T>>(kernels::bias_workspace_rows(tokens), columns);
        agreement.add<Space>(name, run.execute([&] {
          kernels::bias_backward<Space, T, G>(run.stream(), gradient, result, workspace, accumulate);
        }));
        // The inputs are exact in T and sums are formed in Accumulator<T>: only the result is rounded to G.
        check_close(run.values(result), sum, tolerance<G>());
      }
    }
  });
}

TEST_CASE("a bias gradient over no tokens is zero") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    KernelRun<Space> run;
    const auto result = run.template output<T>(5);
    const auto workspace =
        run.template workspace<backend::Accumulator<T>>(kernels::bias_workspace_rows(0), 5);
    const backend::Matrix<const T, Space> none(static_cast<const T*>(nullptr), 0, 5);
    run.execute([&] { kernels::bias_backward<Space, T, T>(run.stream(), none, result, workspace, false); });
    CHECK(run.values(result) == std::vector<double>(5, 0.0));
  });
}

TEST_CASE("a bias workspace that is too small is refused") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto gradient = run.template input<float>(std::vector<double>(1000 * 4, 1.0), 4);
    const auto result = run.template output<float>(4);
    const auto workspace = run.template workspace<float>(kernels::bias_workspace_rows(1000) - 1, 4);
    CHECK_THROWS_AS(
        (kernels::bias_backward<Space, float, float>(run.stream(), gradient, result, workspace, false)),
        ConfigurationError);
  });
}
