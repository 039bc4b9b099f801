// SPDX-License-Identifier: Apache-2.0
#include "product_problem.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <doctest/doctest.h>

using namespace encore::tests;

namespace {

using Cuda = Kokkos::Cuda;

template <class T, class Result>
void check_products(bool tuned, Branch branch = Branch::main) {
  Stream<Cuda> stream;
  const BranchScope scope(stream, branch);
  Blas<Cuda> blas(stream);
  blas.enable_tuning(tuned);
  for_each_product<Cuda, T, Result>(blas, stream,
                                    [](const std::string& name, double error, bool padding_untouched) {
                                      CAPTURE(name);
                                      CHECK(error <= 1.0);
                                      CHECK(padding_untouched);
                                    });
}

const ProductCase recorded{150, 384, 300, false, true, true, ProductCase::Addend::separate, 1.5F, 0.5F};
const ProductCase accumulating{128, 384, 4096, true, false, false, ProductCase::Addend::result, 1.0F, 1.0F};

}  // namespace

TEST_CASE("a product on CUDA agrees with sums in double for every operand layout") {
  check_products<float, float>(false);
  check_products<bfloat16, bfloat16>(false);
  check_products<bfloat16, float>(false);
}

TEST_CASE("a tuned product on CUDA agrees with sums in double for every operand layout") {
  check_products<float, float>(true);
  check_products<bfloat16, bfloat16>(true);
  check_products<bfloat16, float>(true);
}

TEST_CASE("a product beside the main branch agrees with sums in double for every operand layout") {
  check_products<float, float>(false, Branch::beside);
  check_products<bfloat16, bfloat16>(false, Branch::beside);
  check_products<bfloat16, float>(false, Branch::beside);
  check_products<bfloat16, float>(true, Branch::beside);
}

TEST_CASE("a product beside the main branch has the same bits eagerly and replayed") {
  for (const ProductCase& c : {recorded, accumulating}) {
    ProductProblem<bfloat16, float> eager(c), replayed(c);
    Stream<Cuda> stream;
    Blas<Cuda> blas(stream);
    const BranchScope<Cuda> beside(stream, Branch::beside);
    const ProductProblem<bfloat16, float>::OnDevice<Cuda> device(stream, replayed);
    RecordedGraph<Cuda> graph(stream, "product", [&] { replayed.multiply(blas, device); });
    graph.replay();
    replayed.download(device);
    eager.run(blas, stream);
    CHECK(same_bits(eager.result, replayed.result));
  }
}

TEST_CASE("single precision on CUDA is not rounded to TensorFloat-32") {
  // 1 + 2^-12 has two bits more than TensorFloat-32 keeps; the sum is exact in float.
  ProductProblem<float, float> problem({256, 256, 256});
  problem.first.assign(problem.first.size(), 1.0F + 0x1p-12F);
  problem.second.assign(problem.second.size(), 1.0F);
  Stream<Cuda> stream;
  Blas<Cuda> blas(stream);
  problem.run(blas, stream);
  for (const float value : problem.result) REQUIRE(value == 256.0F + 0x1p-4F);
}

TEST_CASE("a replayed product on CUDA has the bits of the eager one, and recording computes nothing") {
  for (const bool tuned : {false, true}) {
    for (const ProductCase& c : {recorded, accumulating}) {
      ProductProblem<bfloat16, float> eager(c), replayed(c);
      const std::vector<float> before = replayed.result;
      Stream<Cuda> stream;
      Blas<Cuda> blas(stream);
      blas.enable_tuning(tuned);
      const ProductProblem<bfloat16, float>::OnDevice<Cuda> device(stream, replayed);
      // The shape is first met while recording; the eager run that follows uses the same algorithm.
      RecordedGraph<Cuda> graph(stream, "product", [&] { replayed.multiply(blas, device); });
      replayed.download(device);
      CHECK(same_bits(before, replayed.result));
      graph.replay();
      replayed.download(device);
      eager.run(blas, stream);
      CHECK(same_bits(eager.result, replayed.result));
    }
  }
}

TEST_CASE("a product on CUDA has the same bits every time") {
  Stream<Cuda> stream;
  Blas<Cuda> blas(stream);
  ProductProblem<float, float> first(accumulating);
  first.run(blas, stream);
  for (int i = 0; i < 20; ++i) {
    ProductProblem<float, float> again(accumulating);
    again.run(blas, stream);
    CHECK(same_bits(first.result, again.result));
  }
}

TEST_CASE("a product that meets its shape inside a capture is refused by name") {
  Stream<Cuda> stream;
  Blas<Cuda> blas(stream);
  const ProductProblem<float, float> problem({8, 8, 8});
  const ProductProblem<float, float>::OnDevice<Cuda> device(stream, problem);
  const ModeScope<Cuda> record(stream, StreamMode::record);
  CHECK_THROWS_AS(problem.multiply(blas, device), encore::CaptureError);
}

TEST_CASE("the portable host kernel cannot be forced on CUDA") {
  Stream<Cuda> stream;
  Blas<Cuda> blas(stream);
  CHECK_THROWS_AS(blas.force(BlasEngine::portable), encore::DeviceError);
  CHECK(blas.engine() == BlasEngine::library);
}
