// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/cross_entropy.hpp>

#include "cross_entropy_reference.hpp"
#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

#include <limits>

using namespace encore;
using namespace encore::tests;

namespace {

/// Everything a training step does with its logits.
template <class Space, class T>
struct Loss {
  using A = backend::Accumulator<T>;

  KernelRun<Space> run;
  backend::Matrix<T, Space> logits;
  backend::Vector<const std::int32_t, Space> labels;
  backend::Vector<A, Space> row_loss;
  backend::Vector<double, Space> count, loss;

  Loss(const std::vector<double>& x, const std::vector<std::int32_t>& y, std::int64_t vocabulary)
      : logits(run.template in_out<T>(x, vocabulary)),
        labels(run.template input<std::int32_t>(y)),
        row_loss(run.template output<A>(y.size())),
        count(run.template output<double>(1)),
        loss(run.template output<double>(1)) {}

  std::vector<std::byte> execute(bool write_gradient) {
    return run.execute([&, write_gradient] {
      kernels::count_labels<Space>(run.stream(), labels, count.data());
      kernels::cross_entropy<Space, T>(run.stream(), logits, labels, count.data(), row_loss, write_gradient);
      kernels::reduce_loss<Space, A>(run.stream(), row_loss, count.data(), loss.data(), false);
    });
  }
};

struct Shape {
  std::int64_t tokens, vocabulary;
};
/// Among them rows of each way in which a GPU keeps them between its two passes.
constexpr Shape shapes[] = {{1, 1},     {1, 2},    {5, 7},     {9, 64},    {17, 257},
                            {40, 1000}, {6, 5003}, {4, 50257}, {2, 60001}, {2, 120007}};

}  // namespace

TEST_CASE("cross-entropy gives the loss of each row, their mean, and the gradient in place of the logits") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    for (const auto& [tokens, vocabulary] : shapes) {
      const std::string name =
          std::to_string(tokens) + "x" + std::to_string(vocabulary) + " of " + std::to_string(sizeof(T));
      INFO(name);
      const auto x = normal_values<T>(tokens * vocabulary, 1, 0, 3);
      const auto y = some_labels(tokens, vocabulary);
      const CrossEntropyReference reference(x, y, vocabulary);
      Loss<Space, T> result(x, y, vocabulary);
      agreement.add<Space>(name, result.execute(true));
      KernelRun<Space>& run = result.run;
      CHECK(run.values(result.count)[0] == reference.count);
      if (vocabulary > 1) check_close(run.values(result.row_loss), reference.row_loss, tolerance<A>());
      CHECK(run.values(result.loss)[0] == doctest::Approx(reference.loss).epsilon(tolerance<A>().largest));
      // A small gradient is a difference from 1: it is as accurate as the probabilities are.
      check_close(run.values(result.logits), reference.gradient, tolerance<T>());
    }
  });
}

TEST_CASE("cross-entropy without a gradient leaves the logits as they are") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    const auto x = normal_values<T>(6 * 301, 1, 0, 3);
    const auto y = some_labels(6, 301);
    Loss<Space, T> with(x, y, 301), without(x, y, 301);
    with.execute(true);
    without.execute(false);
    CHECK(without.run.values(without.logits) == x);
    CHECK(without.run.values(without.row_loss) == with.run.values(with.row_loss));
    CHECK(without.run.values(without.loss) == with.run.values(with.loss));
  });
}

TEST_CASE(
    "ignored rows have no loss and no gradient, and with nothing but ignored rows both are zero, not NaN") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    std::vector<double> x = normal_values<T>(5 * 300, 1);
    x[7] = std::numeric_limits<double>::quiet_NaN();  // What an ignored row holds does not matter.
    Loss<Space, T> result(x, {-100, -1, -100, -100, -7}, 300);
    result.execute(true);
    CHECK(result.run.values(result.count)[0] == 0);
    CHECK(result.run.values(result.loss)[0] == 0);
    CHECK(result.run.values(result.row_loss) == std::vector<double>(5, 0.0));
    CHECK(result.run.values(result.logits) == std::vector<double>(5 * 300, 0.0));
  });
}

TEST_CASE("cross-entropy neither overflows nor underflows at extreme logits") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    std::vector<double> x(3 * 40, 0.0);
    x[5] = 30000;
    for (int v = 0; v < 40; ++v) x[40 + v] = -30000;
    for (int v = 0; v < 40; ++v) x[80 + v] = v == 9 ? 0 : -1e30;
    Loss<Space, T> result(x, {5, 3, 9}, 40);
    result.execute(true);
    const auto rows = result.run.values(result.row_loss);
    CHECK(rows[0] == 0);
    CHECK(rows[1] == doctest::Approx(std::log(40.0)).epsilon(2e-4));  // 30000 has an ulp of 0.002 in float.
    CHECK(rows[2] == 0);
    for (const double value : result.run.values(result.logits)) CHECK(std::abs(value) <= 1.0 / 3);
  });
}

TEST_CASE("a logit that is not a number makes its row's loss and the mean loss not a number") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    for (const std::int64_t place : {0, 13, 299}) {
      std::vector<double> x = normal_values<T>(2 * 300, 1);
      x[300 + place] = std::numeric_limits<double>::quiet_NaN();
      Loss<Space, T> result(x, {1, 2}, 300);
      result.execute(true);
      const auto rows = result.run.values(result.row_loss);
      CHECK(std::isfinite(rows[0]));
      CHECK(std::isnan(rows[1]));
      CHECK(std::isnan(result.run.values(result.loss)[0]));
    }
  });
}

TEST_CASE("the mean loss may be added to an earlier one") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto rows = run.template input<float>(normal_values<float>(4099, 1, 2, 1));
    const auto count = run.template input<double>(std::vector<double>{4000.0});
    const auto loss = run.template in_out<double>(std::vector<double>{10.0});
    run.execute(
        [&] { kernels::reduce_loss<Space, float>(run.stream(), rows, count.data(), loss.data(), true); });
    double sum = 0;
    for (const double value : run.values(rows)) sum += value;
    CHECK(run.values(loss)[0] == doctest::Approx(10 + sum / 4000).epsilon(1e-12));
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("the cross-entropy gradient in double agrees with finite differences") {
  using Space = backend::Serial;
  const auto x = normal_values<double>(5 * 6, 1);
  const std::vector<std::int32_t> y{2, -100, 0, 5, 3};
  Loss<Space, double> result(x, y, 6);
  result.execute(true);
  check_gradient(
      [&](const std::vector<double>& at) {
        Loss<Space, double> forward(at, y, 6);
        forward.execute(false);
        return forward.run.values(forward.loss)[0];
      },
      x, result.run.values(result.logits));
}
#endif

TEST_CASE("cross-entropy refuses labels of another length") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto logits = run.template output<float>(4, 6);
    const auto labels = run.template output<std::int32_t>(3);
    const auto rows = run.template output<float>(4);
    CHECK_THROWS_AS((kernels::cross_entropy<Space, float>(run.stream(), logits, labels, nullptr, rows, true)),
                    ConfigurationError);
  });
}
