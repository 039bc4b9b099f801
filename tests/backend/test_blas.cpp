// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/blas.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace encore::backend;

namespace {

/// A product and everything that may vary about it; strides are extents plus padding.
struct Case {
  std::int64_t m, n, k;
  bool first_transposed = false, second_transposed = false;
  bool bias = false;
  enum class Addend { none, separate, result } addend = Addend::none;
  float alpha = 1.0F, beta = 0.0F;
  std::int64_t padding = 0;
};

std::string name_of(const Case& c) {
  return std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + (c.first_transposed ? " T" : " N") +
         (c.second_transposed ? "T" : "N") + (c.bias ? " bias" : "") + " addend " +
         std::to_string(static_cast<int>(c.addend)) + " alpha " + std::to_string(c.alpha) + " beta " +
         std::to_string(c.beta) + " padding " + std::to_string(c.padding);
}

template <class T>
std::vector<T> random_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<T> values(count);
  for (T& value : values) value = T(uniform(generator));
  return values;
}

template <class T, class Result>
struct Problem {
  explicit Problem(const Case& c)
      : shape(c),
        first_stride((c.first_transposed ? c.m : c.k) + c.padding),
        second_stride((c.second_transposed ? c.k : c.n) + c.padding),
        result_stride(c.n + 2 * c.padding),
        addend_stride(c.addend == Case::Addend::result ? result_stride : c.n + c.padding),
        first(random_values<T>((c.first_transposed ? c.k : c.m) * first_stride, 1)),
        second(random_values<T>((c.second_transposed ? c.n : c.k) * second_stride, 2)),
        bias(random_values<T>(c.n, 3)),
        addend(random_values<Result>(c.m * addend_stride, 4)),
        result(c.m * result_stride, Result(std::numeric_limits<float>::quiet_NaN())) {
    if (c.addend == Case::Addend::result) result = addend;
  }

  template <class Space>
  void multiply(Blas<Space>& blas, Stream<Space>& stream) {
    const Case& c = shape;
    MatrixProductOptions<Result> options;
    options.alpha = c.alpha;
    options.beta = c.beta;
    if (c.bias) options.bias = bias.data();
    if (c.addend == Case::Addend::separate) {
      options.addend = addend.data();
      options.addend_stride = addend_stride;
    }
    if (c.addend == Case::Addend::result) options.addend = result.data();
    using Operand = MatrixOperand<const T>;
    const Operand first_operand{first.data(), c.first_transposed ? c.k : c.m, c.first_transposed ? c.m : c.k,
                                first_stride};
    const Operand second_operand{second.data(), c.second_transposed ? c.n : c.k, c.second_transposed ? c.k : c.n,
                                 second_stride};
    blas.template multiply<T, Result>(stream, "product", c.first_transposed ? Transpose::yes : Transpose::no,
                                      first_operand, c.second_transposed ? Transpose::yes : Transpose::no,
                                      second_operand, MatrixOperand<Result>{result.data(), c.m, c.n, result_stride},
                                      options);
  }

  /// The largest error against sums in double, in units of what rounding may cost.
  double worst_error() const {
    const Case& c = shape;
    double worst = 0;
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        double sum = 0;
        double magnitude = 0;
        for (std::int64_t p = 0; p < c.k; ++p) {
          const double term = double(first[c.first_transposed ? p * first_stride + i : i * first_stride + p]) *
                              double(second[c.second_transposed ? j * second_stride + p : p * second_stride + j]);
          sum += term;
          magnitude += std::abs(term);
        }
        double expected = c.alpha * sum;
        magnitude = std::abs(c.alpha) * magnitude + 1;
        if (c.addend != Case::Addend::none) expected += c.beta * double(addend[i * addend_stride + j]);
        if (c.bias) expected += double(bias[j]);
        const double unit = std::is_same_v<Accumulator<T>, double> ? 1e-15 : 1e-7;
        const double storage = std::is_same_v<Result, bfloat16> ? std::abs(expected) / 256 : 0;
        const double error = std::abs(double(result[i * result_stride + j]) - expected) / (4 * unit * magnitude + storage);
        if (!(error <= worst)) worst = error;
      }
    }
    return worst;
  }

  /// Whether the padding between rows of the result still holds what it held.
  bool padding_untouched() const {
    for (std::int64_t i = 0; i < shape.m; ++i) {
      for (std::int64_t j = shape.n; j < result_stride; ++j) {
        const float value = float(result[i * result_stride + j]);
        if (shape.addend == Case::Addend::result ? value != float(addend[i * addend_stride + j]) : !std::isnan(value))
          return false;
      }
    }
    return true;
  }

  Case shape;
  std::int64_t first_stride, second_stride, result_stride, addend_stride;
  std::vector<T> first, second, bias;
  std::vector<Result> addend, result;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::int64_t shapes[][3] = {{1, 1, 1},    {1, 7, 3},     {5, 1, 9},    {3, 50, 257},  {17, 33, 65},  {64, 64, 64},
                                    {70, 200, 31}, {130, 300, 20}, {40, 70, 515}, {257, 129, 48}, {8, 1000, 16}, {300, 5, 300}};
  for (const auto& [m, n, k] : shapes) {
    for (int variant = 0; variant < 4; ++variant) {
      const bool first = (variant & 1) != 0;
      const bool second = (variant & 2) != 0;
      all.push_back({m, n, k, first, second});
      all.push_back({m, n, k, first, second, true, Case::Addend::separate, 0.5F, -2.0F, 3});
      all.push_back({m, n, k, first, second, variant % 2 == 0, Case::Addend::result, 1.0F, 1.0F, variant});
    }
  }
  for (const bool bias : {false, true})
    for (const auto addend : {Case::Addend::none, Case::Addend::separate, Case::Addend::result})
      for (const std::int64_t k : {0, 9}) {
        all.push_back({6, 70, k, false, true, bias, addend, 0.0F, 0.75F, 1});
        all.push_back({6, 70, k, true, false, bias, addend, 2.0F, addend == Case::Addend::none ? 0.0F : 0.75F, 0});
      }
  return all;
}

template <class Space, class T, class Result>
void check_cases(BlasEngine engine) {
  Stream<Space> stream;
  Blas<Space> blas(stream);
  blas.force(engine);
  for (const Case& c : cases()) {
    Problem<T, Result> problem(c);
    problem.multiply(blas, stream);
    stream.synchronize("test");
    CAPTURE(name_of(c));
    CHECK(problem.worst_error() <= 1.0);
    CHECK(problem.padding_untouched());
  }
}

template <class Space, class T, class Result>
void check_all_engines() {
  check_cases<Space, T, Result>(BlasEngine::portable);
  Stream<Space> stream;
  if (Blas<Space>(stream).engine() == BlasEngine::library) check_cases<Space, T, Result>(BlasEngine::library);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("a product on the serial host agrees with sums in double for every operand layout") {
  check_all_engines<Kokkos::Serial, float, float>();
  check_all_engines<Kokkos::Serial, double, double>();
  check_all_engines<Kokkos::Serial, bfloat16, bfloat16>();
  check_all_engines<Kokkos::Serial, bfloat16, float>();
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST_CASE("a product on OpenMP agrees with sums in double for every operand layout") {
  check_all_engines<Kokkos::OpenMP, float, float>();
  check_all_engines<Kokkos::OpenMP, bfloat16, bfloat16>();
  check_all_engines<Kokkos::OpenMP, bfloat16, float>();
}

TEST_CASE("a product has the same bits on Serial, on one OpenMP thread and on all of them") {
  const Case shapes[] = {{200, 384, 128, false, true, true}, {128, 100, 700, true, false}, {3, 1000, 64}};
  for (const Case& c : shapes) {
    Problem<float, float> serial(c), one(c), all(c);
    Stream<Kokkos::Serial> serial_stream;
    Blas<Kokkos::Serial> serial_blas(serial_stream);
    serial.multiply(serial_blas, serial_stream);
    const Kokkos::OpenMP single(1);
    Stream<Kokkos::OpenMP> one_stream(single);
    Blas<Kokkos::OpenMP> one_blas(one_stream);
    one.multiply(one_blas, one_stream);
    Stream<Kokkos::OpenMP> stream;
    Blas<Kokkos::OpenMP> blas(stream);
    all.multiply(blas, stream);
    CHECK(same_bits(serial.result, one.result));
    CHECK(same_bits(serial.result, all.result));
  }
}

TEST_CASE("a replayed product has the bits of the eager one, and recording computes nothing") {
  const Case c{150, 384, 300, false, true, true, Case::Addend::separate, 1.5F, 0.5F};
  Problem<float, float> eager(c), replayed(c);
  Stream<Kokkos::OpenMP> stream;
  Blas<Kokkos::OpenMP> blas(stream);
  eager.multiply(blas, stream);
  RecordedGraph<Kokkos::OpenMP> graph(stream, "product", [&] { replayed.multiply(blas, stream); });
  CHECK(std::isnan(replayed.result[0]));
  graph.replay();
  CHECK(same_bits(eager.result, replayed.result));
  graph.replay();
  CHECK(same_bits(eager.result, replayed.result));
}
#endif

TEST_CASE("infinities and NaNs in an unread addend or result do not reach the product") {
  Stream<Kokkos::Serial> stream;
  Blas<Kokkos::Serial> blas(stream);
  Problem<float, float> problem({33, 40, 12, false, false, false, Case::Addend::separate, 1.0F, 0.0F});
  const std::vector<float> addend = problem.addend;
  problem.addend.assign(addend.size(), std::numeric_limits<float>::quiet_NaN());
  problem.multiply(blas, stream);
  problem.addend = addend;
  CHECK(problem.worst_error() <= 1.0);
}

TEST_CASE("an empty result is no launch") {
  Stream<Kokkos::Serial> stream;
  Blas<Kokkos::Serial> blas(stream);
  Problem<float, float> rows({0, 5, 3}), columns({5, 0, 3});
  rows.multiply(blas, stream);
  columns.multiply(blas, stream);
  CHECK(stream.counters().launches == 0);
}

TEST_CASE("shapes that do not fit together are named") {
  Stream<Kokkos::Serial> stream;
  Blas<Kokkos::Serial> blas(stream);
  std::vector<float> data(100);
  const auto multiply = [&](MatrixOperand<float> result, std::int64_t second_rows) {
    blas.multiply<float, float>(stream, "qkv", Transpose::no, {data.data(), 3, 4, 4}, Transpose::no,
                                {data.data(), second_rows, 5, 5}, result);
  };
  CHECK_THROWS_WITH_AS(multiply({data.data(), 3, 5, 5}, 6),
                       "matrix product 'qkv': first [3, 4] stride 4, second [6, 5] stride 5, result [3, 5] stride 5 do "
                       "not fit together",
                       encore::InternalError);
  CHECK_THROWS_AS(multiply({data.data(), 3, 6, 6}, 4), encore::InternalError);
  CHECK_THROWS_AS(multiply({data.data(), 3, 5, 4}, 4), encore::InternalError);
}
