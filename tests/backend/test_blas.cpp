// SPDX-License-Identifier: Apache-2.0
#include "product_problem.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <doctest/doctest.h>

#include <thread>
#include <vector>

using namespace encore::tests;

namespace {

template <class Space, class T, class Result>
void check_engine(BlasEngine engine) {
  Stream<Space> stream;
  Blas<Space> blas(stream);
  blas.force(engine);
  for_each_product<Space, T, Result>(blas, stream,
                                     [](const std::string& name, double error, bool padding_untouched) {
                                       CAPTURE(name);
                                       CHECK(error <= 1.0);
                                       CHECK(padding_untouched);
                                     });
}

template <class Space, class T, class Result>
void check_all_engines() {
  check_engine<Space, T, Result>(BlasEngine::portable);
  Stream<Space> stream;
  if (Blas<Space>(stream).engine() == BlasEngine::library)
    check_engine<Space, T, Result>(BlasEngine::library);
}

}  // namespace

TEST_CASE("a product on the serial host agrees with sums in double for every operand layout") {
  check_all_engines<Kokkos::Serial, float, float>();
  check_all_engines<Kokkos::Serial, double, double>();
  check_all_engines<Kokkos::Serial, bfloat16, bfloat16>();
  check_all_engines<Kokkos::Serial, bfloat16, float>();
}

TEST_CASE("products by several threads at the same time have the bits of one thread's") {
  // More threads than cores, so that they are interrupted within calls.
  constexpr int threads = 8, rounds = 300;
  const ProductCase shapes[] = {
      {64, 96, 32}, {32, 61, 64, false, true}, {128, 128, 64, true}, {40, 32, 48, true, true}};
  for (const ProductCase& shape : shapes) {
    CAPTURE(name_of(shape));
    const auto results_of = [&](int number) {
      ProductProblem<float, float> problem(shape);
      Stream<Kokkos::Serial> stream;
      Blas<Kokkos::Serial> blas(stream);
      std::vector<std::vector<float>> results;
      for (int round = 0; round < number; ++round) {
        problem.run(blas, stream);
        if (results.empty() || problem.result != results.back()) results.push_back(problem.result);
      }
      return results;
    };
    const auto expected = results_of(1);
    std::vector<std::vector<std::vector<float>>> found(threads);
    std::vector<std::thread> started;
    for (auto& results : found) started.emplace_back([&] { results = results_of(rounds); });
    for (std::thread& thread : started) thread.join();
    for (const auto& results : found) CHECK((results == expected));
  }
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST_CASE("a product on OpenMP agrees with sums in double for every operand layout") {
  check_all_engines<Kokkos::OpenMP, float, float>();
  check_all_engines<Kokkos::OpenMP, bfloat16, bfloat16>();
  check_all_engines<Kokkos::OpenMP, bfloat16, float>();
}

TEST_CASE("a product has the same bits on Serial, on one OpenMP thread and on all of them") {
  const ProductCase shapes[] = {
      {200, 384, 128, false, true, true}, {128, 100, 700, true, false}, {3, 1000, 64}};
  for (const ProductCase& c : shapes) {
    ProductProblem<float, float> serial(c), one(c), all(c);
    Stream<Kokkos::Serial> serial_stream;
    Blas<Kokkos::Serial> serial_blas(serial_stream);
    serial.run(serial_blas, serial_stream);
    const Kokkos::OpenMP single(1);
    Stream<Kokkos::OpenMP> one_stream(single);
    Blas<Kokkos::OpenMP> one_blas(one_stream);
    one.run(one_blas, one_stream);
    Stream<Kokkos::OpenMP> stream;
    Blas<Kokkos::OpenMP> blas(stream);
    all.run(blas, stream);
    CHECK(same_bits(serial.result, one.result));
    CHECK(same_bits(serial.result, all.result));
  }
}

TEST_CASE("a replayed product has the bits of the eager one, and recording computes nothing") {
  const ProductCase c{150, 384, 300, false, true, true, ProductCase::Addend::separate, 1.5F, 0.5F};
  ProductProblem<float, float> eager(c), replayed(c);
  Stream<Kokkos::OpenMP> stream;
  Blas<Kokkos::OpenMP> blas(stream);
  eager.run(blas, stream);
  const ProductProblem<float, float>::OnDevice<Kokkos::OpenMP> device(stream, replayed);
  RecordedGraph<Kokkos::OpenMP> graph(stream, "product", [&] { replayed.multiply(blas, device); });
  replayed.download(device);
  CHECK(std::isnan(replayed.result[0]));
  graph.replay();
  replayed.download(device);
  CHECK(same_bits(eager.result, replayed.result));
  graph.replay();
  replayed.download(device);
  CHECK(same_bits(eager.result, replayed.result));
}
#endif

TEST_CASE("infinities and NaNs in an unread addend or result do not reach the product") {
  Stream<Kokkos::Serial> stream;
  Blas<Kokkos::Serial> blas(stream);
  ProductProblem<float, float> problem(
      {33, 40, 12, false, false, false, ProductCase::Addend::separate, 1.0F, 0.0F});
  const std::vector<float> addend = problem.addend;
  problem.addend.assign(addend.size(), std::numeric_limits<float>::quiet_NaN());
  problem.run(blas, stream);
  problem.addend = addend;
  CHECK(problem.worst_error() <= 1.0);
}

TEST_CASE("an empty result is no launch") {
  Stream<Kokkos::Serial> stream;
  Blas<Kokkos::Serial> blas(stream);
  ProductProblem<float, float> rows({0, 5, 3}), columns({5, 0, 3});
  rows.run(blas, stream);
  columns.run(blas, stream);
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
  CHECK_THROWS_WITH_AS(
      multiply({data.data(), 3, 5, 5}, 6),
      "matrix product 'qkv': first [3, 4] stride 4, second [6, 5] stride 5, result [3, 5] stride 5 do "
      "not fit together",
      encore::InternalError);
  CHECK_THROWS_AS(multiply({data.data(), 3, 6, 6}, 4), encore::InternalError);
  CHECK_THROWS_AS(multiply({data.data(), 3, 5, 4}, 4), encore::InternalError);
}
