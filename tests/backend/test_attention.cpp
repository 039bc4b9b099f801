// SPDX-License-Identifier: Apache-2.0
#include "attention_problem.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <doctest/doctest.h>

using namespace encore::tests;

namespace {

float scale_of(std::int64_t head_dim) { return 1.0F / std::sqrt(static_cast<float>(head_dim)); }

struct Case {
  AttentionShape shape;
  HeadsLayout layout = HeadsLayout::packed;
  double dropout = 0;
};

std::vector<Case> cases() {
  return {
      {{1, 1, 1, 1, 8, scale_of(8)}},
      {{2, 1, 3, 3, 16, scale_of(16)}, HeadsLayout::apart},
      {{2, 65, 2, 2, 8, scale_of(8)}, HeadsLayout::by_head},
      {{1, 64, 2, 1, 40, scale_of(40)}},
      {{2, 130, 4, 2, 16, 0.7F}},
      {{1, 37, 6, 2, 64, scale_of(64)}, HeadsLayout::packed, 0.3},
      {{1, 200, 2, 2, 33, scale_of(33)}, HeadsLayout::by_head, 0.1},
      {{1, 70, 2, 1, 128, scale_of(128)}, HeadsLayout::apart},
      {{1, 90, 1, 1, 256, scale_of(256)}},
      {{1, 129, 3, 1, 1, 1.0F}, HeadsLayout::packed, 0.5},
      {{1, 200, 2, 1, 16, scale_of(16), 1}},
      {{2, 65, 2, 2, 8, scale_of(8), 64}, HeadsLayout::by_head},
      {{1, 300, 2, 1, 24, scale_of(24), 70}, HeadsLayout::packed, 0.2},
      {{1, 259, 3, 3, 33, scale_of(33), 128}, HeadsLayout::apart},
      {{1, 50, 2, 2, 16, scale_of(16), 50}},
      {{1, 50, 2, 2, 16, scale_of(16), 1000}},
      {{2, 70, 4, 2, 64, scale_of(64), 0, true}},
      {{1, 1, 2, 1, 8, scale_of(8), 3, true}, HeadsLayout::apart},
      {{1, 211, 4, 2, 32, scale_of(32), 17, true}, HeadsLayout::packed, 0.3},
  };
}

const DropoutReference dropout_of(const Case& c) { return {c.dropout, {0x1234567890abcdefULL, 7}, 42}; }

template <class Space, class T>
AttentionResults run(const Case& c, Stream<Space>& stream) {
  const AttentionProblem<T> problem(c.shape, c.layout);
  Attention<Space> attention(stream);
  AttentionBuffers<Space, T> buffers(stream, problem);
  const AttentionDropout dropout = c.dropout == 0 ? AttentionDropout{} : buffers.dropout(dropout_of(c));
  buffers.forward(attention, dropout);
  buffers.backward(attention, dropout);
  return buffers.results();
}

template <class Space, class T>
void check_cases(double forward_tolerance, double backward_tolerance) {
  Stream<Space> stream;
  for (const Case& c : cases()) {
    CAPTURE(c.shape.tokens);
    CAPTURE(c.shape.head_dim);
    const AttentionResults expected = reference_attention(
        AttentionProblem<T>(c.shape, c.layout), c.dropout == 0 ? DropoutReference{} : dropout_of(c));
    const AttentionResults results = run<Space, T>(c, stream);
    CHECK(relative_error(results.output, expected.output) <= forward_tolerance);
    CHECK(relative_error(results.log_sum_exp, expected.log_sum_exp) <= forward_tolerance);
    CHECK(relative_error(results.value_gradient, expected.value_gradient) <= backward_tolerance);
    CHECK(relative_error(results.query_gradient, expected.query_gradient) <= backward_tolerance);
    CHECK(relative_error(results.key_gradient, expected.key_gradient) <= backward_tolerance);
  }
}

/// The sum over all elements of output * output_gradient: its gradients are what backward computes.
double weighted_sum(const AttentionProblem<double>& problem, const DropoutReference& reference) {
  Stream<Kokkos::Serial> stream;
  Attention<Kokkos::Serial> attention(stream);
  AttentionBuffers<Kokkos::Serial, double> buffers(stream, problem);
  buffers.forward(attention, buffers.dropout(reference));
  const AttentionResults results = buffers.results();
  double sum = 0;
  for (std::size_t i = 0; i < results.output.size(); ++i)
    sum += results.output[i] * problem.output_gradient[i];
  return sum;
}

}  // namespace

TEST_CASE("attention and its gradients agree with the definition on the serial host") {
  check_cases<Kokkos::Serial, double>(1e-13, 1e-12);
  check_cases<Kokkos::Serial, float>(2e-6, 1e-5);
  check_cases<Kokkos::Serial, bfloat16>(1e-2, 3e-2);
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST_CASE("attention and its gradients agree with the definition on OpenMP") {
  check_cases<Kokkos::OpenMP, float>(2e-6, 1e-5);
  check_cases<Kokkos::OpenMP, bfloat16>(1e-2, 3e-2);
}

TEST_CASE("attention has the same bits on Serial, on one OpenMP thread and on all of them") {
  for (const Case& c : cases()) {
    Stream<Kokkos::Serial> serial;
    const Kokkos::OpenMP single(1);
    Stream<Kokkos::OpenMP> one(single);
    Stream<Kokkos::OpenMP> all;
    const AttentionResults expected = run<Kokkos::Serial, float>(c, serial);
    CHECK(same_bits(run<Kokkos::OpenMP, float>(c, one), expected));
    CHECK(same_bits(run<Kokkos::OpenMP, float>(c, all), expected));
  }
}

TEST_CASE("replayed attention has the bits of the eager one, and recording computes nothing") {
  const Case c{{2, 150, 4, 2, 32, scale_of(32), 40, true}, HeadsLayout::packed, 0.2};
  Stream<Kokkos::OpenMP> stream;
  const AttentionResults eager = run<Kokkos::OpenMP, float>(c, stream);
  Attention<Kokkos::OpenMP> attention(stream);
  AttentionBuffers<Kokkos::OpenMP, float> buffers(stream, AttentionProblem<float>(c.shape, c.layout));
  const AttentionDropout dropout = buffers.dropout(dropout_of(c));
  RecordedGraph<Kokkos::OpenMP> graph(stream, "attention", [&] {
    buffers.forward(attention, dropout);
    buffers.backward(attention, dropout);
  });
  CHECK(std::isnan(buffers.results().output[0]));
  for (int replay = 0; replay < 2; ++replay) {
    buffers.upload();
    graph.replay();
    CHECK(same_bits(buffers.results(), eager));
  }
}
#endif

TEST_CASE("gradients of attention with a window, sinks and dropout are those of finite differences") {
  const AttentionShape shape{2, 9, 4, 2, 5, 0.6F, 4, true};
  const DropoutReference reference{0.25, {3, 5}, 9};
  AttentionProblem<double> problem(shape, HeadsLayout::apart);
  Stream<Kokkos::Serial> stream;
  Attention<Kokkos::Serial> attention(stream);
  AttentionBuffers<Kokkos::Serial, double> buffers(stream, problem);
  const AttentionDropout dropout = buffers.dropout(reference);
  buffers.forward(attention, dropout);
  buffers.backward(attention, dropout);
  const AttentionResults results = buffers.results();

  const auto check = [&](std::vector<double>& input, const std::vector<double>& gradient) {
    // Inputs pass through float on their way into the buffers.
    constexpr double step = 0x1p-10;
    for (std::size_t i = 0; i < input.size(); i += 7) {
      const double kept = input[i];
      input[i] = double(float(kept + step));
      const double up = input[i];
      const double above = weighted_sum(problem, reference);
      input[i] = double(float(kept - step));
      const double below = weighted_sum(problem, reference);
      const double difference = (above - below) / (up - input[i]);
      input[i] = kept;
      CHECK(gradient[i] == doctest::Approx(difference).epsilon(1e-4).scale(1.0));
    }
  };
  check(problem.query, results.query_gradient);
  check(problem.key, results.key_gradient);
  check(problem.value, results.value_gradient);
}

TEST_CASE("a window wider than the sequence has the bits of none, and a window of one copies the values") {
  Stream<Kokkos::Serial> stream;
  Case c{{2, 90, 4, 2, 16, 0.3F}};
  const AttentionResults all = run<Kokkos::Serial, float>(c, stream);
  for (const std::int64_t window : {90, 91, 5000}) {
    c.shape.window = window;
    CHECK(same_bits(run<Kokkos::Serial, float>(c, stream), all));
  }
  c.shape.window = 1;
  const AttentionProblem<float> problem(c.shape, c.layout);
  const AttentionResults own = run<Kokkos::Serial, float>(c, stream);
  bool copied = true;
  for (std::int64_t row = 0; row < 2 * 4 * 90; ++row) {
    const std::int64_t key_row = ((row / 360) * 2 + row / 90 % 4 / 2) * 90 + row % 90;
    for (std::int64_t d = 0; d < 16; ++d)
      copied = copied && own.output[row * 16 + d] == problem.value[key_row * 16 + d];
  }
  CHECK(copied);
}

TEST_CASE("a sink far below all scores changes nothing, and one far above them takes all weight") {
  Stream<Kokkos::Serial> stream;
  const AttentionShape shape{1, 100, 2, 2, 16, 0.25F, 30};
  const auto output_with = [&](double sink) {
    AttentionShape its_shape = shape;
    its_shape.sinks = true;
    AttentionProblem<float> problem(its_shape, HeadsLayout::packed);
    problem.sinks.assign(2, sink);
    Attention<Kokkos::Serial> attention(stream);
    AttentionBuffers<Kokkos::Serial, float> buffers(stream, problem);
    buffers.forward(attention);
    return buffers.results().output;
  };
  Attention<Kokkos::Serial> attention(stream);
  AttentionBuffers<Kokkos::Serial, float> buffers(stream,
                                                  AttentionProblem<float>(shape, HeadsLayout::packed));
  buffers.forward(attention);
  CHECK(relative_error(output_with(-60), buffers.results().output) <= 1e-6);
  for (const double value : output_with(120)) CHECK(std::abs(value) <= 1e-30);
}

TEST_CASE("attention drops the stated share of probabilities, differently at every offset") {
  // With equal keys all probabilities of a row are equal, and with values of one the output tells how many were kept.
  const AttentionShape shape{1, 512, 4, 4, 8, 1.0F};
  AttentionProblem<float> problem(shape, HeadsLayout::apart);
  problem.key.assign(problem.key.size(), 0.5);
  problem.value.assign(problem.value.size(), 1.0);
  Stream<Kokkos::Serial> stream;
  Attention<Kokkos::Serial> attention(stream);
  AttentionBuffers<Kokkos::Serial, float> buffers(stream, problem);
  const auto output_of = [&](double probability, std::uint64_t offset) {
    buffers.forward(attention, buffers.dropout({probability, {11, offset}, 3}));
    return buffers.results().output;
  };
  const std::vector<double> first = output_of(0.3, 0);
  double kept = 0;
  double pairs = 0;
  for (std::int64_t row = 0; row < shape.heads * shape.tokens; ++row) {
    kept += first[row * shape.head_dim] * 0.7 * double(row % shape.tokens + 1);
    pairs += double(row % shape.tokens + 1);
  }
  CHECK(kept / pairs == doctest::Approx(0.7).epsilon(5 * std::sqrt(0.3 * 0.7 / pairs) / 0.7));
  CHECK(output_of(0.3, 0) == first);
  CHECK(output_of(0.3, 1) != first);
  for (const double value : output_of(0.0, 1)) CHECK(value == doctest::Approx(1.0).epsilon(1e-6));
}

TEST_CASE("no tokens is no launch, and impossible shapes are named") {
  Stream<Kokkos::Serial> stream;
  Attention<Kokkos::Serial> attention(stream);
  attention.forward<float>(stream, {1, 0, 2, 2, 8, 1.0F}, {}, {}, {}, {}, {}, nullptr);
  CHECK(stream.counters().launches == 0);
  CHECK_THROWS_WITH_AS(
      attention.workspace_bytes<float>({1, 5, 4, 3, 8, 1.0F}, {}),
      "attention with batch 1, tokens 5, heads 4, kv_heads 3, head_dim 8: kv_heads must divide heads, "
      "and nothing be negative",
      encore::InternalError);
  CHECK_THROWS_AS(attention.workspace_bytes<float>({1, 5, 4, 4, 257, 1.0F}, {}), encore::InternalError);
  CHECK_THROWS_AS(attention.workspace_bytes<float>({1, 5, 4, 4, 8, 1.0F, -1}, {}), encore::InternalError);
  CHECK_THROWS_AS(
      attention.forward<float>(stream, {1, 5, 4, 4, 8, 1.0F, 0, true}, {}, {}, {}, {}, {}, nullptr),
      encore::InternalError);
  CHECK_THROWS_AS(attention.force(AttentionEngine::cudnn), encore::DeviceError);
  attention.force(AttentionEngine::portable);
  CHECK(attention.engine<float>({1, 5, 4, 4, 8, 1.0F}, {}) == AttentionEngine::portable);
}
