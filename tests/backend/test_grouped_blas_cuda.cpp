// SPDX-License-Identifier: Apache-2.0
#include "grouped_problem.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <doctest/doctest.h>

#include <cstring>

using namespace encore::tests;

namespace {

using Cuda = Kokkos::Cuda;

template <class T>
std::vector<T> values(std::int64_t count, unsigned seed) {
  const std::vector<double> wide = normal_values<T>(count, seed);
  return std::vector<T>(wide.begin(), wide.end());
}

std::vector<double> wide(const auto& narrow) { return std::vector<double>(narrow.begin(), narrow.end()); }

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// A layer of experts [groups, outputs, inputs] on the device, with all three products.
struct Experts {
  Experts(Stream<Cuda>& stream_of_all, const Grouping& grouping, std::int64_t input_columns,
          std::int64_t output_columns)
      : stream(stream_of_all),
        rows(grouping.rows),
        groups(grouping.groups()),
        inputs(input_columns),
        outputs(output_columns),
        begins(stream, grouping.begins),
        ends(stream, grouping.ends),
        input(stream, values<bfloat16>(rows * inputs, 1)),
        weights(stream, values<bfloat16>(groups * outputs * inputs, 2)),
        bias(stream, values<bfloat16>(groups * outputs, 3)),
        gradient(stream, values<bfloat16>(rows * outputs, 4)),
        output(stream, std::vector<bfloat16>(rows * outputs, bfloat16(0.0F))),
        input_gradient(stream, std::vector<bfloat16>(rows * inputs, bfloat16(0.0F))),
        weight_gradient(stream, std::vector<bfloat16>(groups * outputs * inputs, bfloat16(0.0F))),
        sum_of_gradients(stream, values<float>(groups * outputs * inputs, 5)) {}

  RowGroups row_groups() const { return {begins.data(), ends.data(), groups, rows}; }

  void run(GroupedBlas<Cuda>& blas) {
    blas.multiply_rows<bfloat16>(stream, "forward", row_groups(), {input.data(), rows, inputs, inputs},
                                 Transpose::yes, weights.data(), {output.data(), rows, outputs, outputs},
                                 bias.data());
    blas.multiply_rows<bfloat16>(stream, "input gradient", row_groups(),
                                 {gradient.data(), rows, outputs, outputs}, Transpose::no, weights.data(),
                                 {input_gradient.data(), rows, inputs, inputs});
    blas.multiply_weights<bfloat16, bfloat16>(
        stream, "weight gradient", row_groups(), {gradient.data(), rows, outputs, outputs},
        {input.data(), rows, inputs, inputs}, weight_gradient.data(), false);
    blas.multiply_weights<bfloat16, float>(
        stream, "sum of gradients", row_groups(), {gradient.data(), rows, outputs, outputs},
        {input.data(), rows, inputs, inputs}, sum_of_gradients.data(), true);
  }

  struct Results {
    std::vector<bfloat16> output, input_gradient, weight_gradient;
    std::vector<float> sum_of_gradients;

    bool operator==(const Results& other) const {
      return same_bits(output, other.output) && same_bits(input_gradient, other.input_gradient) &&
             same_bits(weight_gradient, other.weight_gradient) &&
             same_bits(sum_of_gradients, other.sum_of_gradients);
    }
  };
  Results results() const {
    return {output.get(), input_gradient.get(), weight_gradient.get(), sum_of_gradients.get()};
  }
  void reset() { sum_of_gradients.set(values<float>(groups * outputs * inputs, 5)); }

  Stream<Cuda>& stream;
  std::int64_t rows, groups, inputs, outputs;
  TestArray<Cuda, std::int32_t> begins, ends;
  TestArray<Cuda, bfloat16> input, weights, bias, gradient, output, input_gradient, weight_gradient;
  TestArray<Cuda, float> sum_of_gradients;
};

std::vector<Grouping> expert_groupings() {
  return {dropless("balanced", std::vector<std::int32_t>(12, 128)),
          dropless("uneven", {0, 1, 300, 64, 65, 127, 129, 0, 450, 17, 33, 8}, 40),
          dropless("one expert", {0, 0, 0, 1500, 0, 0, 0, 0}),
          padded("gaps", {200, 0, 7, 256, 255, 130}, 256)};
}

void check_against_portable(GroupedBlas<Cuda>& blas, Stream<Cuda>& stream, const Grouping& grouping) {
  INFO(grouping.name);
  Experts experts(stream, grouping, 264, 328);
  blas.force(GroupedBlasEngine::portable);
  experts.run(blas);
  const Experts::Results expected = experts.results();
  experts.reset();
  blas.force(GroupedBlasEngine::cutlass);
  experts.run(blas);
  const Experts::Results found = experts.results();
  check_close(wide(found.output), wide(expected.output), tolerance<bfloat16>());
  check_close(wide(found.input_gradient), wide(expected.input_gradient), tolerance<bfloat16>());
  check_close(wide(found.weight_gradient), wide(expected.weight_gradient), tolerance<bfloat16>());
  // Tensor cores cut the sum off at every step of 16 rows, where the portable kernel rounds.
  check_close(wide(found.sum_of_gradients), wide(expected.sum_of_gradients), Tolerance{2e-5, 5e-5});
}

}  // namespace

TEST_CASE("CUTLASS agrees with the portable kernel at the sizes of experts, with each of its tiles") {
  Stream<Cuda> stream;
  GroupedBlas<Cuda> blas(stream);
  if (blas.engine() != GroupedBlasEngine::cutlass) {
    MESSAGE("skipped: no CUTLASS here");
    return;
  }
  const int tiles = static_cast<int>(std::max(blas.tiles_of_rows().size(), blas.tiles_of_weights().size()));
  REQUIRE(tiles > 0);
  for (int tile = -1; tile < tiles; ++tile) {
    CAPTURE(tile);
    blas.force_tiles(tile, tile);
    for (const Grouping& grouping : expert_groupings()) check_against_portable(blas, stream, grouping);
  }
}

TEST_CASE("grouped products on CUDA have the same bits every time, eagerly and replayed") {
  Stream<Cuda> stream;
  GroupedBlas<Cuda> blas(stream);
  for (const Grouping& grouping : expert_groupings()) {
    INFO(grouping.name);
    Experts experts(stream, grouping, 512, 1024);
    experts.run(blas);
    const Experts::Results first = experts.results();
    RecordedGraph<Cuda> graph(stream, "experts", [&] { experts.run(blas); });
    for (int repeat = 0; repeat < 10; ++repeat) {
      experts.reset();
      experts.run(blas);
      CHECK(experts.results() == first);
      experts.reset();
      graph.replay();
      CHECK(experts.results() == first);
    }
  }
}

TEST_CASE(
    "grouped products of several shapes that follow each other in a recording do not disturb each other") {
  Stream<Cuda> stream;
  GroupedBlas<Cuda> blas(stream);
  const Grouping many = dropless("", {30, 0, 200, 1, 64, 65, 300, 12});
  Experts small(stream, many, 64, 128), large(stream, many, 1024, 512);
  Experts few(stream, dropless("", {500, 20}), 256, 256);
  const auto run = [&](Experts& experts) {
    experts.reset();
    experts.run(blas);
    stream.synchronize("test");
    return experts.results();
  };
  const Experts::Results expected[] = {run(small), run(large), run(few)};
  RecordedGraph<Cuda> graph(stream, "experts", [&] {
    for (int repeat = 0; repeat < 5; ++repeat)
      for (Experts* experts : {&small, &large, &few}) {
        stream.clear(experts->sum_of_gradients.data(), experts->sum_of_gradients.size() * sizeof(float),
                     "clear");
        experts->run(blas);
      }
  });
  for (int repeat = 0; repeat < 3; ++repeat) {
    graph.replay();
    int place = 0;
    for (const Experts* experts : {&small, &large, &few}) {
      const Experts::Results found = experts->results();
      CHECK(same_bits(found.output, expected[place].output));
      CHECK(same_bits(found.input_gradient, expected[place].input_gradient));
      CHECK(same_bits(found.weight_gradient, expected[place].weight_gradient));
      ++place;
    }
  }
}

TEST_CASE("operands that CUTLASS cannot take are left to the portable kernel") {
  Stream<Cuda> stream;
  GroupedBlas<Cuda> blas(stream);
  const Grouping grouping = dropless("", {40, 100, 3});
  constexpr std::int64_t n = 64;
  constexpr std::int64_t k = 96;
  const std::vector<bfloat16> input = values<bfloat16>(grouping.rows * k, 1);
  const std::vector<bfloat16> weights = values<bfloat16>(grouping.groups() * n * k, 2);
  std::vector<bfloat16> shifted(1, bfloat16(0.0F));
  shifted.insert(shifted.end(), input.begin(), input.end());
  const TestArray<Cuda, std::int32_t> begins(stream, grouping.begins), ends(stream, grouping.ends);
  const TestArray<Cuda, bfloat16> device_input(stream, shifted), device_weights(stream, weights);
  const TestArray<Cuda, bfloat16> result(stream, std::vector<bfloat16>(grouping.rows * n, bfloat16(0.0F)));
  blas.multiply_rows<bfloat16>(stream, "shifted",
                               {begins.data(), ends.data(), grouping.groups(), grouping.rows},
                               {device_input.data() + 1, grouping.rows, k, k}, Transpose::yes,
                               device_weights.data(), {result.data(), grouping.rows, n, n});
  check_close(wide(result.get()), reference_rows(grouping, n, k, true, wide(input), wide(weights), nullptr),
              tolerance<bfloat16>());
  // Columns that are no whole packets, in rows that are.
  constexpr std::int64_t odd = n - 3;
  const TestArray<Cuda, bfloat16> narrow(stream, std::vector<bfloat16>(grouping.rows * n, bfloat16(7.0F)));
  const TestArray<Cuda, bfloat16> aligned(stream, input);
  blas.multiply_rows<bfloat16>(stream, "odd", {begins.data(), ends.data(), grouping.groups(), grouping.rows},
                               {aligned.data(), grouping.rows, k, k}, Transpose::yes, device_weights.data(),
                               {narrow.data(), grouping.rows, odd, n});
  const std::vector<double> found = wide(narrow.get());
  const std::vector<double> expected =
      reference_rows(grouping, odd, k, true, wide(input), wide(weights), nullptr);
  std::vector<double> columns;
  bool others_stand = true;
  for (std::int64_t row = 0; row < grouping.rows; ++row) {
    columns.insert(columns.end(), found.begin() + row * n, found.begin() + row * n + odd);
    for (std::int64_t column = odd; column < n; ++column)
      others_stand = others_stand && found[row * n + column] == 7;
  }
  check_close(columns, expected, tolerance<bfloat16>());
  CHECK(others_stand);
}

TEST_CASE(
    "a first grouped product inside a capture is refused by name, and an engine that is not there as well") {
  Stream<Cuda> stream;
  GroupedBlas<Cuda> blas(stream);
  if (blas.engine() != GroupedBlasEngine::cutlass) {
    CHECK_THROWS_AS(blas.force(GroupedBlasEngine::cutlass), encore::DeviceError);
    return;
  }
  Experts experts(stream, dropless("", {8, 8}), 64, 64);
  const ModeScope<Cuda> record(stream, StreamMode::record);
  CHECK_THROWS_WITH_AS(
      experts.run(blas),
      "the first grouped product of this device, 'forward', is inside a recording: run or prime it "
      "once before",
      encore::CaptureError);
}
