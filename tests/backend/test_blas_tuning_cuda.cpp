// SPDX-License-Identifier: Apache-2.0
#include "product_problem.hpp"

#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/tuning_cache.hpp>

#include <doctest/doctest.h>

using namespace encore::tests;

namespace {

using Cuda = Kokkos::Cuda;

const ProductCase products[] = {
    {96, 384, 512, false, true},
    {128, 384, 4096, true, false, false, ProductCase::Addend::result, 1.0F, 1.0F},
    {150, 384, 300, false, true, false, ProductCase::Addend::separate, 1.5F, 0.5F},
    {1024, 2048, 1024, false, false, false, ProductCase::Addend::none, 1.0F, 0.0F, 8}};

std::vector<std::vector<float>> results_of(Blas<Cuda>& blas, Stream<Cuda>& stream) {
  std::vector<std::vector<float>> results;
  for (const ProductCase& c : products) {
    ProductProblem<bfloat16, float> problem(c);
    problem.run(blas, stream);
    results.push_back(problem.result);
  }
  return results;
}

bool same(const std::vector<std::vector<float>>& first, const std::vector<std::vector<float>>& second) {
  bool equal = first.size() == second.size();
  for (std::size_t i = 0; equal && i < first.size(); ++i) equal = same_bits(first[i], second[i]);
  return equal;
}

/// The same machine and products with other algorithms.
TuningCache with_algorithm(const TuningCache& cache, const TuningMachine& machine,
                           const std::string& algorithm) {
  std::string text = cache.text();
  for (std::size_t line = text.find(machine.library); line != std::string::npos;
       line = text.find(machine.library, line + 1)) {
    const std::size_t product = text.find('\t', line) + 1, begin = text.find('\t', product) + 1;
    text.replace(begin, text.find('\t', begin) - begin, algorithm);
  }
  TuningCache changed;
  CHECK(changed.read(text, "changed"));
  return changed;
}

}  // namespace

TEST_CASE("a second tuned object with the same cache measures nothing and computes the same bits") {
  Stream<Cuda> stream;
  const auto cache = std::make_shared<TuningCache>();
  Blas<Cuda> first(stream);
  first.enable_tuning(true, cache);
  const auto results = results_of(first, stream);
  CHECK(first.tuning_report().measured == std::size(products));
  CHECK(first.tuning_report().seconds > 0);
  CHECK(cache->size() == std::size(products));
  CHECK(cache->size_beside(first.tuning_machine()) == 0);

  const auto read = std::make_shared<TuningCache>();
  CHECK(read->read(cache->text(), "kept"));
  Blas<Cuda> second(stream);
  second.enable_tuning(true, read);
  CHECK(same(results_of(second, stream), results));
  CHECK(second.tuning_report().measured == 0);
  CHECK(second.tuning_report().taken == std::size(products));
  CHECK(read->changes() == 0);
}

TEST_CASE(
    "entries of a tuning cache that the library does not offer, or of other machines, are measured again") {
  Stream<Cuda> stream;
  const auto cache = std::make_shared<TuningCache>();
  Blas<Cuda> first(stream);
  first.enable_tuning(true, cache);
  (void)results_of(first, stream);

  const auto changed =
      std::make_shared<TuningCache>(with_algorithm(*cache, first.tuning_machine(), std::string(128, 'f')));
  Blas<Cuda> second(stream);
  second.enable_tuning(true, changed);
  (void)results_of(second, stream);
  CHECK(second.tuning_report().unknown == std::size(products));
  CHECK(second.tuning_report().measured == std::size(products));

  const auto foreign = std::make_shared<TuningCache>();
  std::string text = cache->text();
  for (std::size_t at = text.find("cuBLASLt "); at != std::string::npos; at = text.find("cuBLASLt ", at + 10))
    text.replace(at, 9, "cuBLASLt 1");
  REQUIRE(foreign->read(text, "foreign"));
  Blas<Cuda> third(stream);
  third.enable_tuning(true, foreign);
  (void)results_of(third, stream);
  CHECK(third.tuning_report().unknown == 0);
  CHECK(third.tuning_report().measured == std::size(products));
  CHECK(foreign->size_beside(third.tuning_machine()) == std::size(products));
}

TEST_CASE("a product that is tuned while a recording is primed changes nothing until the replay") {
  // Larger than the cache, so that an eager run would be measured with the operands themselves.
  const ProductCase large{2048, 16384, 2048, false, true};
  ProductProblem<bfloat16, bfloat16> recorded(large), eager(large);
  Stream<Cuda> stream;
  Blas<Cuda> blas(stream);
  const auto cache = std::make_shared<TuningCache>();
  blas.enable_tuning(true, cache);
  const auto before = recorded.result;
  const ProductProblem<bfloat16, bfloat16>::OnDevice<Cuda> device(stream, recorded);
  RecordedGraph<Cuda> graph(stream, "product", [&] { recorded.multiply(blas, device); });
  CHECK(blas.tuning_report().measured == 1);
  recorded.download(device);
  CHECK(same_bits(before, recorded.result));
  graph.replay();
  recorded.download(device);

  Blas<Cuda> executing(stream);
  executing.enable_tuning(true, cache);
  eager.run(executing, stream);
  CHECK(executing.tuning_report().taken == 1);
  CHECK(same_bits(eager.result, recorded.result));
}
