// SPDX-License-Identifier: Apache-2.0
#include "grouped_problem.hpp"
#include "kernel_run.hpp"
#include "typed.hpp"

#include <encore/backend/error.hpp>

#include <doctest/doctest.h>

#include <cmath>

using namespace encore::tests;

namespace {

struct Extents {
  std::int64_t m, n;
};
/// Multiples of 8, by which CUTLASS takes them, and others.
const std::vector<Extents> extents{{64, 96}, {33, 17}, {8, 200}, {264, 72}};

const char* name_of(GroupedBlasEngine engine) {
  return engine == GroupedBlasEngine::cutlass ? "cutlass" : "portable";
}

/// The part of a result that belongs to rows of groups, with zeros elsewhere; elsewhere there must be the poison.
std::vector<double> of_groups(const Grouping& grouping, std::int64_t columns, std::vector<double> values) {
  const std::vector<std::int64_t> owners = grouping.owners();
  bool untouched = true;
  for (std::int64_t row = 0; row < grouping.rows; ++row) {
    if (owners[row] >= 0) continue;
    for (std::int64_t column = 0; column < columns; ++column) {
      double& value = values[row * columns + column];
      untouched = untouched && std::isnan(value);
      value = 0;
    }
  }
  CHECK(untouched);
  return values;
}

template <class Space, class T>
std::vector<std::byte> check_rows(GroupedBlasEngine engine, const Grouping& grouping, std::int64_t n,
                                  std::int64_t k, bool transposed, bool with_bias) {
  KernelRun<Space> run;
  GroupedBlas<Space> blas(run.stream());
  blas.force(engine);
  const std::vector<double> input = row_values<T>(grouping, k, 1);
  const std::vector<double> weights = normal_values<T>(grouping.groups() * n * k, 2);
  const std::vector<double> bias = normal_values<T>(grouping.groups() * n, 3);
  const auto begins = run.template input<std::int32_t>(grouping.begins);
  const auto ends = run.template input<std::int32_t>(grouping.ends);
  const auto device_input = run.template input<T>(input, k);
  const auto device_weights = run.template input<T>(weights);
  const auto device_bias = run.template input<T>(bias);
  const auto result = run.template output<T>(grouping.rows, n);
  const RowGroups groups{begins.data(), ends.data(), grouping.groups(), grouping.rows};
  std::vector<std::byte> bytes = run.execute([&] {
    blas.template multiply_rows<T>(run.stream(), "test", groups, operand<const T, Space>(device_input),
                                   transposed ? Transpose::yes : Transpose::no, device_weights.data(),
                                   operand<T, Space>(result), with_bias ? device_bias.data() : nullptr);
  });
  check_close(of_groups(grouping, n, run.values(result)),
              reference_rows(grouping, n, k, transposed, input, weights, with_bias ? &bias : nullptr),
              tolerance<T>());
  return bytes;
}

template <class Space, class T, class Result>
std::vector<std::byte> check_weights(GroupedBlasEngine engine, const Grouping& grouping, std::int64_t m,
                                     std::int64_t n, bool accumulate) {
  KernelRun<Space> run;
  GroupedBlas<Space> blas(run.stream());
  blas.force(engine);
  const std::vector<double> first = row_values<T>(grouping, m, 4);
  const std::vector<double> second = row_values<T>(grouping, n, 5);
  const std::vector<double> before = normal_values<Result>(grouping.groups() * m * n, 6);
  const auto begins = run.template input<std::int32_t>(grouping.begins);
  const auto ends = run.template input<std::int32_t>(grouping.ends);
  const auto device_first = run.template input<T>(first, m);
  const auto device_second = run.template input<T>(second, n);
  const auto result = accumulate ? run.template in_out<Result>(before)
                                 : run.template output<Result>(grouping.groups() * m * n);
  const RowGroups groups{begins.data(), ends.data(), grouping.groups(), grouping.rows};
  std::vector<std::byte> bytes = run.execute([&] {
    blas.template multiply_weights<T, Result>(
        run.stream(), "test", groups, operand<const T, Space>(device_first),
        operand<const T, Space>(device_second), result.data(), accumulate);
  });
  check_close(run.values(result),
              reference_weights(grouping, m, n, first, second,
                                accumulate ? before : std::vector<double>(before.size(), 0)),
              tolerance<Result>());
  return bytes;
}

}  // namespace

TEST_CASE(
    "rows times the weights of their group agree with sums in double, and rows of no group are left alone") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const GroupedBlasEngine engine : grouped_engines<Space, T>())
      for (const Grouping& grouping : groupings())
        for (const Extents& extent : extents)
          for (int variant = 0; variant < 4; ++variant) {
            const bool transposed = variant % 2 == 1;
            const bool with_bias = variant / 2 == 1;
            if (grouping.groups() > 20 && extent.m > 64) continue;
            const std::string name = grouping.name + ", n " + std::to_string(extent.n) + ", k " +
                                     std::to_string(extent.m) + (transposed ? ", transposed" : "") +
                                     (with_bias ? ", bias" : "");
            INFO(name_of(engine));
            INFO(name);
            agreement.add<Space>(
                typed_name<Kokkos::Serial, T>() + name,
                check_rows<Space, T>(engine, grouping, extent.n, extent.m, transposed, with_bias));
          }
  });
}

TEST_CASE(
    "transposed rows times rows agree with sums in double for each group, and rows of no group do not "
    "count") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class Result>(Types<Space, T, Result>) {
    for (const GroupedBlasEngine engine : grouped_engines<Space, T>())
      for (const Grouping& grouping : groupings())
        for (const Extents& extent : extents)
          for (const bool accumulate : {false, true}) {
            if (grouping.groups() > 20 && extent.m > 64) continue;
            const std::string name = grouping.name + ", m " + std::to_string(extent.m) + ", n " +
                                     std::to_string(extent.n) + (accumulate ? ", accumulated" : "");
            INFO(name_of(engine));
            INFO(name);
            agreement.add<Space>(
                typed_name<Kokkos::Serial, T>() + typed_name<Kokkos::Serial, Result>() + name,
                check_weights<Space, T, Result>(engine, grouping, extent.m, extent.n, accumulate));
          }
  });
}

TEST_CASE("a recorded grouped product follows bounds of groups that change between replays") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    for (const GroupedBlasEngine engine : grouped_engines<Space, T>()) {
      INFO(name_of(engine));
      const std::vector<Grouping> steps{dropless("", {20, 100, 30, 50}), dropless("", {0, 0, 200, 0}),
                                        dropless("", {199, 1, 0, 0}), padded("", {50, 0, 49, 7}, 50)};
      constexpr std::int64_t rows = 200;
      constexpr std::int64_t m = 64;
      constexpr std::int64_t n = 48;
      Stream<Space> stream;
      GroupedBlas<Space> blas(stream);
      blas.force(engine);
      const auto values = [](std::int64_t count, unsigned seed) {
        const std::vector<double> wide = normal_values<T>(count, seed);
        return std::vector<T>(wide.begin(), wide.end());
      };
      TestArray<Space, std::int32_t> begins(stream, steps[0].begins), ends(stream, steps[0].ends);
      const TestArray<Space, T> input(stream, values(rows * m, 1)), weights(stream, values(4 * n * m, 2));
      TestArray<Space, T> output(stream, std::vector<T>(rows * n, T(0.0F)));
      TestArray<Space, T> gradient(stream, std::vector<T>(4 * m * n, T(0.0F)));
      const RowGroups groups{begins.data(), ends.data(), 4, rows};
      const MatrixOperand<const T> left{input.data(), rows, m, m};
      const MatrixOperand<T> right{output.data(), rows, n, n};
      const auto program = [&] {
        blas.template multiply_rows<T>(stream, "forward", groups, left, Transpose::yes, weights.data(),
                                       right);
        blas.template multiply_weights<T, T>(stream, "gradient", groups, left, {right.data, rows, n, n},
                                             gradient.data(), false);
      };
      const auto results = [&] {
        std::vector<double> all;
        for (const T value : output.get()) all.push_back(static_cast<double>(value));
        for (const T value : gradient.get()) all.push_back(static_cast<double>(value));
        return all;
      };
      RecordedGraph<Space> graph(stream, "test", program);
      for (const Grouping& step : steps) {
        begins.set(step.begins);
        ends.set(step.ends);
        output.set(std::vector<T>(rows * n, T(0.0F)));
        program();
        const std::vector<double> eager = results();
        output.set(std::vector<T>(rows * n, T(1.0F)));
        output.set(std::vector<T>(rows * n, T(0.0F)));
        gradient.set(std::vector<T>(4 * m * n, T(7.0F)));
        graph.replay();
        CHECK(results() == eager);
        CHECK(std::any_of(eager.begin(), eager.end(), [](double value) { return value != 0; }));
      }
    }
  });
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST_CASE("a grouped product has the same bits on one OpenMP thread and on all of them") {
  const Grouping grouping = dropless("", {300, 0, 17, 5, 129}, 30);
  constexpr std::int64_t n = 320;
  constexpr std::int64_t k = 520;
  const auto values = [](std::int64_t count, unsigned seed) {
    const std::vector<double> wide = normal_values<float>(count, seed);
    return std::vector<float>(wide.begin(), wide.end());
  };
  const auto results = [&](Stream<Kokkos::OpenMP>& stream) {
    GroupedBlas<Kokkos::OpenMP> blas(stream);
    const std::vector<float> input = values(grouping.rows * k, 1),
                             weights = values(grouping.groups() * n * k, 2);
    std::vector<float> output(grouping.rows * n, 0.0F), gradient(grouping.groups() * n * k);
    const RowGroups groups{grouping.begins.data(), grouping.ends.data(), grouping.groups(), grouping.rows};
    const MatrixOperand<const float> left{input.data(), grouping.rows, k, k};
    blas.multiply_rows<float>(stream, "test", groups, left, Transpose::yes, weights.data(),
                              {output.data(), grouping.rows, n, n});
    blas.multiply_weights<float, float>(stream, "test", groups, {output.data(), grouping.rows, n, n}, left,
                                        gradient.data(), false);
    stream.synchronize("test");
    output.insert(output.end(), gradient.begin(), gradient.end());
    return output;
  };
  const Kokkos::OpenMP single(1);
  Stream<Kokkos::OpenMP> one(single), all;
  const std::vector<float> expected = results(one);
  CHECK(results(all) == expected);
}
#endif

TEST_CASE(
    "rows with a stride of their own take part in grouped products, and what lies between them does not") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    for (const GroupedBlasEngine engine : grouped_engines<Space, T>()) {
      INFO(name_of(engine));
      const Grouping grouping = dropless("", {9, 40, 0, 12});
      constexpr std::int64_t n = 24;
      constexpr std::int64_t k = 40;
      constexpr std::int64_t padding = 8;
      KernelRun<Space> run;
      GroupedBlas<Space> blas(run.stream());
      blas.force(engine);
      const std::vector<double> input = normal_values<T>(grouping.rows * k, 1);
      const std::vector<double> weights = normal_values<T>(grouping.groups() * n * k, 2);
      std::vector<double> wide(grouping.rows * (k + padding), std::nan(""));
      for (std::int64_t row = 0; row < grouping.rows; ++row)
        for (std::int64_t p = 0; p < k; ++p) wide[row * (k + padding) + p] = input[row * k + p];
      const auto begins = run.template input<std::int32_t>(grouping.begins);
      const auto ends = run.template input<std::int32_t>(grouping.ends);
      const auto device_input = run.template input<T>(wide);
      const auto device_weights = run.template input<T>(weights);
      const auto result = run.template output<T>(grouping.rows * (n + padding));
      const RowGroups groups{begins.data(), ends.data(), grouping.groups(), grouping.rows};
      run.execute([&] {
        blas.template multiply_rows<T>(run.stream(), "test", groups,
                                       {device_input.data(), grouping.rows, k, k + padding}, Transpose::no,
                                       device_weights.data(), {result.data(), grouping.rows, n, n + padding});
      });
      const std::vector<double> found = run.values(result);
      std::vector<double> packed;
      bool padding_untouched = true;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(found.size()); ++i) {
        if (i % (n + padding) < n)
          packed.push_back(found[i]);
        else
          padding_untouched = padding_untouched && std::isnan(found[i]);
      }
      CHECK(padding_untouched);
      check_close(packed, reference_rows(grouping, n, k, false, input, weights, nullptr), tolerance<T>());
    }
  });
}

TEST_CASE("grouped operands that do not fit together are named") {
  Stream<Kokkos::Serial> stream;
  GroupedBlas<Kokkos::Serial> blas(stream);
  std::vector<float> data(100);
  const std::vector<std::int32_t> bounds{0, 3};
  const RowGroups groups{bounds.data(), bounds.data() + 1, 1, 3};
  CHECK_THROWS_WITH_AS(
      blas.multiply_rows<float>(stream, "experts", groups, {data.data(), 4, 5, 5}, Transpose::yes,
                                data.data(), {data.data(), 3, 2, 2}),
      "grouped product 'experts': input [4, 5] stride 5, result [3, 2] stride 2 do not fit 3 rows",
      encore::InternalError);
  CHECK_THROWS_AS((blas.multiply_weights<float, float>(stream, "experts", groups, {data.data(), 3, 5, 4},
                                                       {data.data(), 3, 2, 2}, data.data(), false)),
                  encore::InternalError);
}

TEST_CASE("a grouped product without groups, columns or rows of memory is no launch") {
  Stream<Kokkos::Serial> stream;
  GroupedBlas<Kokkos::Serial> blas(stream);
  const RowGroups none{nullptr, nullptr, 0, 0};
  blas.multiply_rows<float>(stream, "test", none, {nullptr, 0, 4, 4}, Transpose::yes, nullptr,
                            {nullptr, 0, 3, 3});
  blas.multiply_weights<float, float>(stream, "test", none, {nullptr, 0, 4, 4}, {nullptr, 0, 3, 3}, nullptr,
                                      false);
  CHECK(stream.counters().launches == 0);
}
