// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/expert_activation.hpp>

#include "finite_difference.hpp"
#include "random_values.hpp"
#include "routing_cases.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;
using kernels::ExpertActivation;
using kernels::ExpertActivationKind;

namespace {

struct Slopes {
  double value, gate, up;
};

/// Of a gated activation, or of one that only has a gate.
Slopes reference(const ExpertActivation& activation, double gate, double up) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  switch (activation.kind) {
    case ExpertActivationKind::swiglu: {
      const double s = sigmoid(gate);
      return {gate * s * up, up * (s + gate * s * (1 - s)), gate * s};
    }
    case ExpertActivationKind::swiglu_clamped: {
      const double g = std::min(gate, activation.limit);
      const double u = std::min(std::max(up, -activation.limit), activation.limit);
      const double s = sigmoid(1.702 * g), slope = (u + 1) * (s + 1.702 * g * s * (1 - s));
      return {g * s * (u + 1), gate <= activation.limit ? slope : 0,
              std::abs(up) <= activation.limit ? g * s : 0};
    }
    case ExpertActivationKind::relu_squared: {
      const double x = std::max(gate, 0.0);
      return {x * x, 2 * x, 0};
    }
  }
  return {};
}

std::int64_t gate_column(const ExpertActivation& activation, std::int64_t c) {
  return activation.kind == ExpertActivationKind::swiglu_clamped ? 2 * c : c;
}
std::int64_t up_column(const ExpertActivation& activation, std::int64_t c, std::int64_t ffn) {
  if (activation.kind == ExpertActivationKind::swiglu_clamped) return 2 * c + 1;
  return activation.kind == ExpertActivationKind::swiglu ? ffn + c : c;
}

std::vector<ExpertActivation> activations() {
  return {{ExpertActivationKind::swiglu},
          {ExpertActivationKind::swiglu_clamped, 1.75},
          {ExpertActivationKind::relu_squared}};
}

}  // namespace

TEST_CASE(
    "expert rows are activated and weighted, and both gradients reach back; other rows are not touched") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    std::vector<Routing> cases = routing_cases();
    cases.push_back({"many rows", 4200, 2, 6, 0, 8400});  // A GPU shares these out otherwise.
    cases.back().draw(8);
    const std::vector<ExpertActivation> kinds = activations();
    for (const Routing& routing : cases) {
      const bool many = routing.name == "many rows";
      if ((routing.tokens > 500 && !many) || routing.rows == 0) continue;
      for (const ExpertActivation& activation : kinds) {
        if (many && activation.kind != ExpertActivationKind::swiglu) continue;
        for (const std::int64_t ffn : {1, 7, 64, 2056}) {
          if (ffn > 1000 && routing.rows > 120) continue;
          if (many && ffn != 64) continue;
          const std::string name = routing.name + std::to_string(routing.capacity) + ", activation " +
                                   std::to_string(static_cast<int>(activation.kind)) + ", ffn " +
                                   std::to_string(ffn) + ", " + std::to_string(sizeof(T));
          INFO(name);
          const std::int64_t columns = kernels::raised_columns(activation, ffn), rows = routing.rows;
          const ReferenceRows where(routing);
          const auto x = poisoned(routing, normal_values<T>(rows * columns, 1, 0, 2), columns);
          const auto dy = poisoned(routing, normal_values<T>(rows * ffn, 2), ffn);
          const auto router = normal_values<A>(routing.chosen.size(), 3, 0.5, 0.2);
          std::vector<double> y(rows * ffn), dx(rows * columns), dw(routing.chosen.size());
          for (std::int64_t r = 0; r < rows; ++r) {
            const std::int32_t pair = where.source[r];
            for (std::int64_t c = 0; c < ffn && pair >= 0; ++c) {
              const std::int64_t gate = r * columns + gate_column(activation, c),
                                 up = r * columns + up_column(activation, c, ffn);
              const Slopes slopes = reference(activation, x[gate], x[up]);
              const double upstream = dy[r * ffn + c];
              y[r * ffn + c] = router[pair] * slopes.value;
              dw[pair] += upstream * slopes.value;
              dx[up] = router[pair] * upstream * slopes.up;
              dx[gate] = router[pair] * upstream * slopes.gate;  // The same column where there is no up.
            }
          }
          KernelRun<Space> run;
          const auto lie = input_rows(run, routing);
          const auto raised = run.template input<T>(x, columns);
          const auto gradient = run.template input<T>(dy, ffn);
          const auto weights = run.template input<A>(router, routing.topk);
          const auto activated = run.template output<T>(rows, ffn);
          const auto raised_gradient = run.template output<T>(rows, columns);
          const auto in_place = run.template in_out<T>(x, columns);
          const auto weight_gradient = run.template output<A>(routing.tokens, routing.topk);
          agreement.add<Space>(name, run.execute([&] {
            kernels::expert_activation_forward<Space, T>(run.stream(), activation, raised, lie.source,
                                                         weights, activated);
            kernels::expert_activation_backward<Space, T>(run.stream(), activation, in_place, gradient,
                                                          lie.source, lie.row_of, weights, in_place,
                                                          weight_gradient);
            kernels::expert_activation_backward<Space, T>(run.stream(), activation, raised, gradient,
                                                          lie.source, lie.row_of, weights, raised_gradient,
                                                          weight_gradient);
          }));
          check_rows(routing, run.values(activated), y, ffn, tolerance<T>());
          check_rows(routing, run.values(raised_gradient), dx, columns, tolerance<T>());
          check_rows(routing, run.values(in_place), dx, columns, tolerance<T>());
          check_close(run.values(weight_gradient), dw, tolerance<A>());
        }
      }
    }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("expert activation gradients in double agree with finite differences") {
  using Space = backend::Serial;
  Routing routing{"", 4, 2, 3, 0, 9};
  routing.draw(2);
  const std::int64_t ffn = 5;
  const std::vector<ExpertActivation> kinds = activations();
  for (const ExpertActivation& activation : kinds) {
    const std::int64_t columns = kernels::raised_columns(activation, ffn);
    const auto x = normal_values<double>(9 * columns, 1, 0, 2), router = normal_values<double>(8, 2);
    auto c = normal_values<double>(9 * ffn, 3);
    std::fill(c.begin() + 8 * ffn, c.end(), 0);  // The ninth row has no source.
    const auto loss = [&](const std::vector<double>& at, const std::vector<double>& weight) {
      KernelRun<Space> run;
      const auto lie = input_rows(run, routing);
      const auto raised = run.input<double>(at, columns), weights = run.input<double>(weight, 2);
      const auto activated = run.in_out<double>(std::vector<double>(9 * ffn), ffn);
      run.execute([&] {
        kernels::expert_activation_forward<Space, double>(run.stream(), activation, raised, lie.source,
                                                          weights, activated);
      });
      return weighted_sum(run.values(activated), c);
    };
    KernelRun<Space> run;
    const auto lie = input_rows(run, routing);
    const auto raised = run.input<double>(x, columns), weights = run.input<double>(router, 2);
    const auto gradient = run.input<double>(c, ffn);
    const auto raised_gradient = run.in_out<double>(std::vector<double>(9 * columns), columns);
    const auto weight_gradient = run.output<double>(4, 2);
    run.execute([&] {
      kernels::expert_activation_backward<Space, double>(run.stream(), activation, raised, gradient,
                                                         lie.source, lie.row_of, weights, raised_gradient,
                                                         weight_gradient);
    });
    check_gradient([&](const std::vector<double>& at) { return loss(at, router); }, x,
                   run.values(raised_gradient));
    check_gradient([&](const std::vector<double>& weight) { return loss(x, weight); }, router,
                   run.values(weight_gradient));
  }
}
#endif

TEST_CASE("expert activations keep NaN visible, neither overflow nor lose their limits") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    const std::vector<ExpertActivation> kinds = activations();
    for (const ExpertActivation& activation : kinds) {
      const std::vector<double> edges{-1e4, -100, -1.75, 0, 1.75, 100, 1e4, std::nan("")};
      const std::int64_t columns = kernels::raised_columns(activation, 8);
      std::vector<double> x(columns), y(8);
      for (int c = 0; c < 8; ++c) {
        x[up_column(activation, c, 8)] = edges[7 - c] == edges[7 - c] ? edges[7 - c] : 1;
        x[gate_column(activation, c)] = edges[c];
        y[c] = reference(activation, edges[c], x[up_column(activation, c, 8)]).value;
      }
      KernelRun<Space> run;
      const auto raised = run.template input<T>(x, columns);
      const auto source = run.template input<std::int32_t>(std::vector<std::int32_t>{0});
      const auto weights = run.template input<A>(std::vector<double>{1}, 1);
      const auto activated = run.template output<T>(1, 8);
      run.execute([&] {
        kernels::expert_activation_forward<Space, T>(run.stream(), activation, raised, source, weights,
                                                     activated);
      });
      auto result = run.values(activated);
      CHECK(std::isnan(result[7]));
      result.pop_back();
      y.pop_back();
      check_close(result, y, tolerance<T>());
    }
  });
}

TEST_CASE("expert activations refuse shapes that do not fit before anything runs") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto raised = run.template output<float>(6, 8), activated = run.template output<float>(6, 4),
               flat = run.template output<float>(6, 8), weights = run.template output<float>(3, 2);
    const auto source = run.template output<std::int32_t>(6),
               short_source = run.template output<std::int32_t>(5);
    const auto forward = [&](ExpertActivationKind kind, const auto& from, const auto& to) {
      kernels::expert_activation_forward<Space, float>(run.stream(), {kind}, raised, from, weights, to);
    };
    CHECK_THROWS_AS(forward(ExpertActivationKind::relu_squared, source, activated), ConfigurationError);
    CHECK_THROWS_AS(forward(ExpertActivationKind::swiglu, source, flat), ConfigurationError);
    CHECK_THROWS_AS(forward(ExpertActivationKind::swiglu, short_source, activated), ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
