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

/// What ranks do that have parts of a vocabulary, all on one device: `parts` are the columns of each.
template <class Space, class T>
struct LossOfParts {
  using A = backend::Accumulator<T>;
  struct Part {
    std::int64_t first;
    backend::Matrix<T, Space> logits;
    backend::Vector<A, Space> row_loss;
  };

  KernelRun<Space> run;
  backend::Vector<const std::int32_t, Space> labels;
  backend::Matrix<A, Space> statistics;
  backend::Vector<double, Space> count, loss;
  std::vector<Part> parts;
  std::int64_t tokens, vocabulary = 0;

  LossOfParts(const std::vector<double>& x, const std::vector<std::int32_t>& y,
              const std::vector<std::int64_t>& columns)
      : labels(run.template input<std::int32_t>(y)),
        statistics(run.template output<A>(columns.size() * y.size(), kernels::part_statistics)),
        count(run.template output<double>(1)),
        loss(run.template output<double>(1)),
        tokens(y.size()) {
    for (const std::int64_t part : columns) vocabulary += part;
    std::int64_t first = 0;
    for (const std::int64_t part : columns) {
      std::vector<double> own;
      for (std::int64_t t = 0; t < tokens; ++t)
        own.insert(own.end(), x.begin() + t * vocabulary + first, x.begin() + t * vocabulary + first + part);
      parts.push_back({first, run.template in_out<T>(own, part), run.template output<A>(tokens)});
      first += part;
    }
  }

  std::vector<std::byte> execute(bool write_gradient) {
    return run.execute([&, write_gradient] {
      kernels::count_labels<Space>(run.stream(), labels, count.data());
      for (std::size_t p = 0; p < parts.size(); ++p) {
        const backend::Matrix<A, Space> own(statistics.data() + p * tokens * kernels::part_statistics, tokens,
                                            kernels::part_statistics);
        kernels::cross_entropy_part<Space, T>(run.stream(), parts[p].logits, labels, parts[p].first, own);
      }
      for (const Part& part : parts)
        kernels::cross_entropy_of_parts<Space, T>(run.stream(), part.logits, labels, part.first, statistics,
                                                  count.data(), part.row_loss, write_gradient);
      kernels::reduce_loss<Space, A>(run.stream(), parts.front().row_loss, count.data(), loss.data(), false);
    });
  }

  /// [tokens, vocabulary]
  std::vector<double> logits() {
    std::vector<double> whole(tokens * vocabulary);
    for (const Part& part : parts) {
      const auto own = run.values(part.logits);
      const auto columns = static_cast<std::int64_t>(part.logits.extent(1));
      for (std::int64_t i = 0; i < tokens * columns; ++i)
        whole[i / columns * vocabulary + part.first + i % columns] = own[i];
    }
    return whole;
  }
};

struct Case {
  std::int64_t tokens;
  std::vector<std::int64_t> parts;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all{{1, {1, 1}},
                                     {5, {7}},
                                     {5, {3, 4}},
                                     {9, {32, 32}},
                                     {17, {128, 129}},
                                     {40, {256, 256, 256, 232}},
                                     {6, {2504, 2499}},
                                     {4, {12568, 12568, 12568, 12553}},
                                     {2, {8, 8, 8, 8, 8, 8, 8, 5}}};
  return all;
}

std::int64_t sum_of(const std::vector<std::int64_t>& parts) {
  std::int64_t sum = 0;
  for (const std::int64_t part : parts) sum += part;
  return sum;
}

}  // namespace

TEST_CASE("cross-entropy of parts of a vocabulary gives the losses and gradient of the whole to every part") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    for (const Case& c : cases()) {
      const std::int64_t vocabulary = sum_of(c.parts);
      const std::string name = std::to_string(c.tokens) + "x" + std::to_string(vocabulary) + " in " +
                               std::to_string(c.parts.size()) + " of " + std::to_string(sizeof(T));
      INFO(name);
      const auto x = normal_values<T>(c.tokens * vocabulary, 1, 0, 3);
      const auto y = some_labels(c.tokens, vocabulary);
      const CrossEntropyReference reference(x, y, vocabulary);
      LossOfParts<Space, T> result(x, y, c.parts);
      agreement.add<Space>(name, result.execute(true));
      for (const auto& part : result.parts)
        check_close(result.run.values(part.row_loss), reference.row_loss, tolerance<A>());
      CHECK(result.run.values(result.loss)[0] ==
            doctest::Approx(reference.loss).epsilon(tolerance<A>().largest));
      check_close(result.logits(), reference.gradient, tolerance<T>());
    }
  });
}

TEST_CASE("cross-entropy of parts without a gradient leaves the logits as they are") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    const auto x = normal_values<T>(6 * 301, 1, 0, 3);
    const auto y = some_labels(6, 301);
    LossOfParts<Space, T> with(x, y, {152, 149}), without(x, y, {152, 149});
    with.execute(true);
    without.execute(false);
    CHECK(without.logits() == x);
    CHECK(without.run.values(without.loss) == with.run.values(with.loss));
  });
}

TEST_CASE("ignored rows of parts have no loss and no gradient, whatever they hold") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    std::vector<double> x = normal_values<T>(5 * 300, 1);
    x[7] = std::numeric_limits<double>::quiet_NaN();
    LossOfParts<Space, T> result(x, {-100, -1, -100, -100, -7}, {160, 140});
    result.execute(true);
    CHECK(result.run.values(result.loss)[0] == 0);
    CHECK(result.run.values(result.parts[1].row_loss) == std::vector<double>(5, 0.0));
    CHECK(result.logits() == std::vector<double>(5 * 300, 0.0));
  });
}

TEST_CASE("cross-entropy of parts neither overflows nor underflows, and keeps what is not a number") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    std::vector<double> x(4 * 40, 0.0);
    x[5] = 30000;
    for (int v = 0; v < 40; ++v) x[40 + v] = -30000;
    for (int v = 0; v < 40; ++v) x[80 + v] = v == 29 ? 0 : -1e30;
    x[120 + 33] = std::numeric_limits<double>::quiet_NaN();
    LossOfParts<Space, T> result(x, {5, 3, 29, 1}, {16, 16, 8});
    result.execute(true);
    for (const auto& part : result.parts) {
      const auto rows = result.run.values(part.row_loss);
      CHECK(rows[0] == 0);
      CHECK(rows[1] == doctest::Approx(std::log(40.0)).epsilon(2e-4));  // 30000 has an ulp of 0.002 in float.
      CHECK(rows[2] == 0);
      CHECK(std::isnan(rows[3]));
    }
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("the gradient of cross-entropy of parts in double agrees with finite differences") {
  using Space = backend::Serial;
  const auto x = normal_values<double>(5 * 6, 1);
  const std::vector<std::int32_t> y{2, -100, 0, 5, 3};
  LossOfParts<Space, double> result(x, y, {4, 2});
  result.execute(true);
  check_gradient(
      [&](const std::vector<double>& at) {
        LossOfParts<Space, double> forward(at, y, {4, 2});
        forward.execute(false);
        return forward.run.values(forward.loss)[0];
      },
      x, result.logits());
}
#endif

TEST_CASE("cross-entropy of parts refuses statistics of other sizes") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto logits = run.template output<float>(4, 6);
    const auto labels = run.template output<std::int32_t>(4);
    const auto rows = run.template output<float>(4);
    const auto statistics = run.template output<float>(7, kernels::part_statistics);
    CHECK_THROWS_AS((kernels::cross_entropy_part<Space, float>(run.stream(), logits, labels, 0, statistics)),
                    ConfigurationError);
    CHECK_THROWS_AS((kernels::cross_entropy_of_parts<Space, float>(run.stream(), logits, labels, 0,
                                                                   statistics, nullptr, rows, true)),
                    ConfigurationError);
  });
}
