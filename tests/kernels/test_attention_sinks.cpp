// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/attention_sinks.hpp>

#include "attention_problem.hpp"
#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

struct Shape {
  std::int64_t batch, sequence, heads, head_dim;
};
constexpr Shape shapes[] = {{1, 1, 1, 1}, {2, 7, 3, 12}, {1, 65, 64, 16}, {3, 20, 5, 64}, {2, 33, 17, 80}};

}  // namespace

TEST_CASE("a sink's gradient is minus its share of the softmax times what the values get, summed") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    using A = backend::Accumulator<T>;
    for (const bool accumulate : {false, true})
      for (const Shape& s : shapes) {
        const std::string name = std::to_string(s.batch * s.sequence) + " tokens of " +
                                 std::to_string(s.heads) + " heads, " + std::to_string(sizeof(T)) +
                                 std::to_string(sizeof(G)) + (accumulate ? " added" : "");
        INFO(name);
        const std::int64_t tokens = s.batch * s.sequence, width = s.heads * s.head_dim;
        const auto sinks = normal_values<T>(s.heads, 1), output = normal_values<T>(tokens * width, 2);
        const auto output_gradient = normal_values<T>(tokens * width, 3);
        const auto log_sum_exp = normal_values<A>(tokens * s.heads, 4, 2);
        const auto before = normal_values<G>(s.heads, 5);
        std::vector<double> expected(s.heads);
        for (std::int64_t h = 0; h < s.heads; ++h) {
          if (accumulate) expected[h] = before[h];
          for (std::int64_t b = 0; b < s.batch; ++b)
            for (std::int64_t t = 0; t < s.sequence; ++t) {
              double dot = 0;
              for (std::int64_t d = 0; d < s.head_dim; ++d) {
                const std::int64_t at = ((b * s.sequence + t) * s.heads + h) * s.head_dim + d;
                dot += output[at] * output_gradient[at];
              }
              expected[h] -= std::exp(sinks[h] - log_sum_exp[(b * s.heads + h) * s.sequence + t]) * dot;
            }
        }
        KernelRun<Space> run;
        const auto sinks_in = run.template input<T>(sinks);
        const auto output_in = run.template input<T>(output, width),
                   gradient_in = run.template input<T>(output_gradient, width);
        const auto log_sum_exp_in = run.template input<A>(log_sum_exp, s.sequence);
        const auto widened = run.template output<A>(s.heads);
        const auto gradient = accumulate ? run.template in_out<G>(before) : run.template output<G>(s.heads);
        const auto workspace =
            run.template workspace<A>(kernels::attention_sinks_workspace_rows(tokens), s.heads);
        agreement.add<Space>(name, run.execute([&] {
          kernels::attention_sinks_forward<Space, T>(run.stream(), sinks_in, widened);
          kernels::attention_sinks_backward<Space, T, G>(run.stream(), sinks_in, output_in, gradient_in,
                                                         log_sum_exp_in, gradient, workspace, accumulate);
        }));
        CHECK(run.values(widened) == sinks);
        check_close(run.values(gradient), expected, tolerance<T, G>());
      }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("the gradient of sinks behind attention with a window and dropout agrees with finite differences") {
  using Space = backend::Serial;
  const AttentionShape shape{2, 11, 4, 2, 6, 0.5F, 5, true};
  const DropoutReference dropout{0.25, {3, 5}, 9};
  AttentionProblem<double> problem(shape, HeadsLayout::apart);
  Stream<Space> stream;
  Attention<Space> attention(stream);
  const auto forward = [&](const std::vector<double>& sinks) {
    problem.sinks = sinks;
    auto buffers = std::make_unique<AttentionBuffers<Space, double>>(stream, problem);
    buffers->forward(attention, buffers->dropout(dropout));
    return buffers;
  };
  const std::vector<double> at = problem.sinks;
  const auto buffers = forward(at);
  const std::int64_t rows = kernels::attention_sinks_workspace_rows(22);
  std::vector<double> result(4), workspace(rows * 4);
  using Matrix = backend::Matrix<const double, Space>;
  kernels::attention_sinks_backward<Space, double, double>(
      stream, backend::Vector<const double, Space>(at.data(), 4), Matrix(buffers->output(), 22, 24),
      Matrix(buffers->output_gradient(), 22, 24), Matrix(buffers->log_sum_exp(), 8, 11),
      backend::Vector<double, Space>(result.data(), 4),
      backend::Matrix<double, Space>(workspace.data(), rows, 4), false);
  check_gradient(
      [&](const std::vector<double>& point) {
        return weighted_sum(forward(point)->results().output, problem.output_gradient);
      },
      at, result);
  problem.sinks = at;
  check_close(result, reference_attention(problem, dropout).sinks_gradient, {1e-12, 1e-12});
}
#endif

TEST_CASE("the gradient of sinks refuses shapes that do not fit before anything runs") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto sinks = run.template output<float>(3), gradient = run.template output<float>(2);
    const auto output = run.template output<float>(4, 6), rows = run.template output<float>(6, 2);
    const auto workspace = run.template output<float>(2, 3);
    CHECK_THROWS_AS((kernels::attention_sinks_backward<Space, float, float>(
                        run.stream(), sinks, output, output, rows, gradient, workspace, false)),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::attention_sinks_forward<Space, float>(run.stream(), sinks, gradient)),
                    ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
