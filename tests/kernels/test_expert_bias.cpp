// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/expert_bias.hpp>

#include "finite_difference.hpp"
#include "random_values.hpp"
#include "routing_cases.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

constexpr std::int64_t widths[] = {1, 7, 64, 264};

std::string name_of(const Routing& routing, std::int64_t columns) {
  return routing.name + std::to_string(routing.capacity) + ", " + std::to_string(columns) + " columns, ";
}

}  // namespace

TEST_CASE(
    "an expert's bias is added to its rows by their weights, and the weights get their share of the "
    "gradient") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    const std::vector<Routing> cases = routing_cases();
    for (const Routing& routing : cases) {
      if (routing.tokens > 500 || routing.rows == 0) continue;
      for (const std::int64_t hidden : widths) {
        const std::string name = name_of(routing, hidden) + std::to_string(sizeof(T));
        INFO(name);
        const ReferenceRows where(routing);
        const auto before = poisoned(routing, normal_values<T>(routing.rows * hidden, 1), hidden);
        const auto dy = poisoned(routing, normal_values<T>(routing.rows * hidden, 2), hidden);
        const auto b = normal_values<T>(routing.experts * hidden, 3);
        const auto router = normal_values<A>(routing.chosen.size(), 4, 0.5, 0.2);
        const auto started = normal_values<A>(routing.chosen.size(), 5);
        std::vector<double> y = before, dw = started;
        for (std::int64_t r = 0; r < routing.rows; ++r) {
          const std::int32_t pair = where.source[r];
          for (std::int64_t c = 0; c < hidden && pair >= 0; ++c) {
            const double bias = b[routing.chosen[pair] * hidden + c];
            y[r * hidden + c] += router[pair] * bias;
            dw[pair] += dy[r * hidden + c] * bias;
          }
        }
        KernelRun<Space> run;
        const auto lie = input_rows(run, routing);
        const auto bias = run.template input<T>(b, hidden), gradient = run.template input<T>(dy, hidden);
        const auto weights = run.template input<A>(router, routing.topk);
        const auto experts = run.template input<std::int32_t>(routing.chosen, routing.topk);
        const auto output = run.template in_out<T>(before, hidden);
        const auto weight_gradient = run.template in_out<A>(started, routing.topk);
        agreement.add<Space>(name, run.execute([&] {
          kernels::expert_bias_forward<Space, T>(run.stream(), bias, lie.source, weights, experts, output);
          kernels::expert_bias_weight_gradient<Space, T>(run.stream(), gradient, bias, lie.source, experts,
                                                         weight_gradient);
        }));
        check_rows(routing, run.values(output), y, hidden, tolerance<T>());
        check_close(run.values(weight_gradient), dw, tolerance<A>());
      }
    }
  });
}

TEST_CASE(
    "a bias gradient sums each expert's rows, and an expert without rows gets zero or keeps what it has") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    using A = backend::Accumulator<T>;
    const std::vector<Routing> cases = routing_cases();
    for (const Routing& routing : cases) {
      if (routing.rows == 0) continue;
      for (const std::int64_t columns : widths) {
        if (columns > 1 && routing.tokens > 500) continue;
        for (const int variant : {0, 1, 2, 3}) {
          const bool accumulate = variant % 2 == 1, weighted = variant / 2 == 1;
          const std::string name = name_of(routing, columns) + std::to_string(sizeof(T)) +
                                   std::to_string(sizeof(G)) + (accumulate ? " added" : " set") +
                                   (weighted ? " weighted" : "");
          INFO(name);
          const ReferenceRows where(routing);
          const auto dy = poisoned(routing, normal_values<T>(routing.rows * columns, 1), columns);
          const auto router = normal_values<A>(routing.chosen.size(), 2, 0.5, 0.2);
          const auto before = normal_values<G>(routing.experts * columns, 3);
          std::vector<double> db(before.size());
          if (accumulate) db = before;
          for (std::int64_t r = 0; r < routing.rows; ++r) {
            const std::int32_t pair = where.source[r];
            for (std::int64_t c = 0; c < columns && pair >= 0; ++c)
              db[routing.chosen[pair] * columns + c] += (weighted ? router[pair] : 1) * dy[r * columns + c];
          }
          KernelRun<Space> run;
          const auto lie = input_rows(run, routing);
          const auto gradient = run.template input<T>(dy, columns);
          backend::Matrix<const A, Space> weights;
          if (weighted) weights = run.template input<A>(router, routing.topk);
          const auto bias_gradient = accumulate ? run.template in_out<G>(before, columns)
                                                : run.template output<G>(routing.experts, columns);
          const auto workspace = run.template workspace<A>(
              kernels::expert_bias_workspace_rows(routing.rows, routing.experts), columns);
          agreement.add<Space>(name, run.execute([&] {
            kernels::expert_bias_backward<Space, T, G>(run.stream(), gradient, lie.begins, lie.ends,
                                                       lie.source, weights, bias_gradient, workspace,
                                                       accumulate);
          }));
          const auto result = run.values(bias_gradient);
          check_close(result, db, tolerance<G>());
          bool empty_stand = true;
          for (std::int64_t i = 0; i < routing.experts * columns; ++i)
            if (where.begins[i / columns] == where.ends[i / columns])
              empty_stand = empty_stand && result[i] == (accumulate ? before[i] : 0);
          CHECK(empty_stand);
        }
      }
    }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("expert bias gradients in double agree with finite differences") {
  using Space = backend::Serial;
  Routing routing{"", 4, 2, 3, 0, 8};
  routing.draw(2);
  const std::int64_t hidden = 5;
  const auto b = normal_values<double>(3 * hidden, 1), router = normal_values<double>(8, 2),
             c = normal_values<double>(8 * hidden, 3);
  const auto loss = [&](const std::vector<double>& at, const std::vector<double>& weight) {
    KernelRun<Space> run;
    const auto lie = input_rows(run, routing);
    const auto bias = run.input<double>(at, hidden), weights = run.input<double>(weight, 2);
    const auto experts = run.input<std::int32_t>(routing.chosen, 2);
    const auto output = run.in_out<double>(std::vector<double>(8 * hidden), hidden);
    run.execute([&] {
      kernels::expert_bias_forward<Space, double>(run.stream(), bias, lie.source, weights, experts, output);
    });
    return weighted_sum(run.values(output), c);
  };
  KernelRun<Space> run;
  const auto lie = input_rows(run, routing);
  const auto bias = run.input<double>(b, hidden), gradient = run.input<double>(c, hidden);
  const auto weights = run.input<double>(router, 2);
  const auto experts = run.input<std::int32_t>(routing.chosen, 2);
  const auto weight_gradient = run.in_out<double>(std::vector<double>(8), 2);
  const auto bias_gradient = run.output<double>(3, hidden);
  const auto workspace = run.workspace<double>(kernels::expert_bias_workspace_rows(8, 3), hidden);
  run.execute([&] {
    kernels::expert_bias_weight_gradient<Space, double>(run.stream(), gradient, bias, lie.source, experts,
                                                        weight_gradient);
    kernels::expert_bias_backward<Space, double, double>(
        run.stream(), gradient, lie.begins, lie.ends, lie.source, weights, bias_gradient, workspace, false);
  });
  check_gradient([&](const std::vector<double>& at) { return loss(at, router); }, b,
                 run.values(bias_gradient));
  check_gradient([&](const std::vector<double>& weight) { return loss(b, weight); }, router,
                 run.values(weight_gradient));
}
#endif

TEST_CASE("expert biases refuse shapes that do not fit before anything runs") {
  for_each_space([]<class Space>(Types<Space>) {
    Routing routing{"", 4, 2, 3, 0, 8};
    routing.draw(2);
    KernelRun<Space> run;
    const auto lie = input_rows(run, routing);
    const auto gradient = run.template output<float>(8, 5), bias = run.template output<float>(3, 5),
               narrow = run.template output<float>(3, 4), two = run.template output<float>(2, 5);
    const auto weights = run.template output<float>(4, 2);
    const auto experts = run.template output<std::int32_t>(4, 2);
    const auto workspace = run.template workspace<float>(kernels::expert_bias_workspace_rows(8, 3) - 1, 5);
    CHECK_THROWS_AS((kernels::expert_bias_forward<Space, float>(run.stream(), narrow, lie.source, weights,
                                                                experts, gradient)),
                    ConfigurationError);
    const auto backward = [&](const auto& result) {
      kernels::expert_bias_backward<Space, float, float>(run.stream(), gradient, lie.begins, lie.ends,
                                                         lie.source, weights, result, workspace, false);
    };
    CHECK_THROWS_AS(backward(bias), ConfigurationError);  // Its workspace is a row short.
    CHECK_THROWS_AS(backward(two), ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
