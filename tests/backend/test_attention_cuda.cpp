// SPDX-License-Identifier: Apache-2.0
#include "attention_problem.hpp"
#include "attention_rotations.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <doctest/doctest.h>

#include <memory>

using namespace encore::tests;

namespace {

using Cuda = Kokkos::Cuda;

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
      {{1, 300, 4, 1, 128, scale_of(128)}, HeadsLayout::packed, 0.2},
      {{1, 90, 1, 1, 256, scale_of(256)}},
      {{2, 100, 2, 1, 200, scale_of(200)}, HeadsLayout::packed, 0.25},
      {{1, 129, 3, 1, 1, 1.0F}, HeadsLayout::packed, 0.5},
      {{1, 200, 2, 1, 16, scale_of(16), 1}},
      {{2, 65, 2, 2, 8, scale_of(8), 64}, HeadsLayout::by_head},
      {{1, 300, 2, 1, 24, scale_of(24), 70}, HeadsLayout::packed, 0.2},
      {{1, 259, 3, 3, 33, scale_of(33), 128}, HeadsLayout::apart},
      {{1, 150, 2, 1, 200, scale_of(200), 40}},
      {{1, 50, 2, 2, 16, scale_of(16), 50}},
      {{1, 50, 2, 2, 16, scale_of(16), 1000}},
      {{2, 70, 4, 2, 64, scale_of(64), 0, true}},
      {{1, 1, 2, 1, 8, scale_of(8), 3, true}, HeadsLayout::apart},
      {{1, 211, 4, 2, 128, scale_of(128), 17, true}, HeadsLayout::packed, 0.3},
  };
}

DropoutReference dropout_of(const Case& c) { return {c.dropout, {0x1234567890abcdefULL, 7}, 42}; }

template <class T>
AttentionResults run(const Case& c, Stream<Cuda>& stream, Attention<Cuda>& attention) {
  AttentionBuffers<Cuda, T> buffers(stream, AttentionProblem<T>(c.shape, c.layout));
  const AttentionDropout dropout = c.dropout == 0 ? AttentionDropout{} : buffers.dropout(dropout_of(c));
  buffers.forward(attention, dropout);
  buffers.backward(attention, dropout);
  return buffers.results();
}

template <class T>
void check(const Case& c, const AttentionResults& results, double forward_tolerance,
           double backward_tolerance) {
  CAPTURE(c.shape.tokens);
  CAPTURE(c.shape.head_dim);
  const AttentionResults expected = reference_attention(AttentionProblem<T>(c.shape, c.layout),
                                                        c.dropout == 0 ? DropoutReference{} : dropout_of(c));
  CHECK(relative_error(results.output, expected.output) <= forward_tolerance);
  CHECK(relative_error(results.log_sum_exp, expected.log_sum_exp) <= forward_tolerance);
  CHECK(relative_error(results.value_gradient, expected.value_gradient) <= backward_tolerance);
  CHECK(relative_error(results.query_gradient, expected.query_gradient) <= backward_tolerance);
  CHECK(relative_error(results.key_gradient, expected.key_gradient) <= backward_tolerance);
}

std::vector<Case> cases_of_cudnn() {
  return {
      {{2, 128, 4, 4, 64, scale_of(64)}, HeadsLayout::packed},
      {{2, 200, 4, 2, 64, scale_of(64)}, HeadsLayout::apart},
      {{1, 333, 6, 2, 128, 0.05F}, HeadsLayout::packed},
      {{3, 64, 2, 2, 32, scale_of(32)}, HeadsLayout::by_head},
      {{1, 512, 8, 1, 80, scale_of(80)}, HeadsLayout::packed},
      {{2, 384, 4, 2, 64, scale_of(64), 128}, HeadsLayout::packed},
      {{1, 333, 4, 4, 128, scale_of(128), 100}, HeadsLayout::apart},
      {{1, 700, 4, 2, 96, scale_of(96), 1}, HeadsLayout::packed},
      {{1, 300, 4, 2, 64, scale_of(64), 4096}, HeadsLayout::packed},
  };
}

std::vector<Case> cases_with_sinks() {
  return {
      {{2, 256, 8, 2, 64, scale_of(64), 0, true}, HeadsLayout::packed},
      {{2, 333, 4, 4, 64, scale_of(64), 128, true}, HeadsLayout::apart},
      {{1, 200, 4, 1, 128, scale_of(128), 50, true}, HeadsLayout::packed},
  };
}

/// Few and many blocks, so that every tile size is used; tails, groups, windows, sinks, layouts.
std::vector<Case> cases_of_matrix_units() {
  std::vector<Case> cases;
  for (const std::int64_t head_dim : {64, 128}) {
    const float scale = scale_of(head_dim);
    for (const std::int64_t tokens : {1, 15, 16, 17, 63, 64, 100, 128, 129, 513}) {
      cases.push_back({{1, tokens, 4, 4, head_dim, scale}, HeadsLayout::packed});
      cases.push_back({{2, tokens, 6, 2, head_dim, scale}, HeadsLayout::apart});
      cases.push_back({{1, tokens, 4, 1, head_dim, 0.3F, 50, true}, HeadsLayout::by_head});
    }
    cases.push_back({{3, 200, 16, 8, head_dim, scale}, HeadsLayout::packed});
    cases.push_back({{2, 333, 12, 12, head_dim, scale, 100}, HeadsLayout::packed});
    cases.push_back({{2, 500, 16, 4, head_dim, scale, 0, true}, HeadsLayout::by_head});
    cases.push_back({{1, 1024, 8, 8, head_dim, scale}, HeadsLayout::packed});
    cases.push_back({{2, 700, 10, 5, head_dim, scale, 1, true}, HeadsLayout::packed});
  }
  return cases;
}

/// One engine against the definition and against the portable one.
void check_engine(AttentionEngine engine, Stream<Cuda>& stream, Attention<Cuda>& attention,
                  Attention<Cuda>& portable, const Case& c) {
  CAPTURE(c.shape.window);
  CAPTURE(c.shape.sinks);
  CAPTURE(c.shape.batch);
  CHECK(attention.engine<bfloat16>(c.shape, {}) == engine);
  const AttentionResults results = run<bfloat16>(c, stream, attention);
  check<bfloat16>(c, results, 1e-2, 3e-2);
  const AttentionResults others = run<bfloat16>(c, stream, portable);
  // Natural logarithms both, so that either engine's forward serves the other's backward.
  CHECK(relative_error(results.log_sum_exp, others.log_sum_exp) <= 1e-4);
  CHECK(relative_error(results.output, others.output) <= 1e-2);
  CHECK(relative_error(results.query_gradient, others.query_gradient) <= 3e-2);
  CHECK(relative_error(results.key_gradient, others.key_gradient) <= 3e-2);
  CHECK(relative_error(results.value_gradient, others.value_gradient) <= 3e-2);
}

/// Eager and replayed, many times; and of a graph whose attention is gone.
void check_replays(Stream<Cuda>& stream, Attention<Cuda>& attention, const Case& c) {
  AttentionBuffers<Cuda, bfloat16> buffers(stream, AttentionProblem<bfloat16>(c.shape, c.layout));
  // First met while recording: what cuDNN needs is set up while priming.
  RecordedGraph<Cuda> graph(stream, "attention", [&] {
    buffers.forward(attention);
    buffers.backward(attention);
  });
  CHECK(std::isnan(buffers.results().output[0]));
  graph.replay();
  const AttentionResults first = buffers.results();
  for (int i = 0; i < 10; ++i) {
    buffers.upload();
    graph.replay();
    CHECK(same_bits(buffers.results(), first));
  }
  CHECK(same_bits(run<bfloat16>(c, stream, attention), first));

  // Made for another stream, and gone before the replay: the graph keeps what it needs.
  Stream<Cuda> other;
  auto temporary = std::make_unique<Attention<Cuda>>(other);
  temporary->force(attention.engine<bfloat16>(c.shape, {}));
  RecordedGraph<Cuda> second(stream, "attention of another stream", [&] {
    buffers.forward(*temporary);
    buffers.backward(*temporary);
  });
  temporary.reset();
  buffers.upload();
  second.replay();
  CHECK(same_bits(buffers.results(), first));
}

/// Whether cuDNN can be forced; says why not otherwise.
bool forces_cudnn(Attention<Cuda>& attention) {
  try {
    attention.force(AttentionEngine::cudnn);
    return true;
  } catch (const encore::DeviceError& error) {
    MESSAGE("skipped: ", error.what());
    return false;
  }
}

}  // namespace

TEST_CASE("portable attention on CUDA and its gradients agree with the definition") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  attention.force(AttentionEngine::portable);
  for (const Case& c : cases()) {
    check<float>(c, run<float>(c, stream, attention), 3e-6, 2e-5);
    check<bfloat16>(c, run<bfloat16>(c, stream, attention), 1e-2, 3e-2);
  }
}

TEST_CASE("bfloat16 attention on CUDA agrees with the definition whichever engine takes it") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  for (const Case& c : cases()) check<bfloat16>(c, run<bfloat16>(c, stream, attention), 1e-2, 3e-2);
}

TEST_CASE("portable attention on CUDA has the same bits every time and when replayed") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  attention.force(AttentionEngine::portable);
  const Case c{{2, 300, 4, 2, 64, scale_of(64), 90, true}, HeadsLayout::packed, 0.2};
  const AttentionResults eager = run<float>(c, stream, attention);
  CHECK(same_bits(run<float>(c, stream, attention), eager));
  AttentionBuffers<Cuda, float> buffers(stream, AttentionProblem<float>(c.shape, c.layout));
  const AttentionDropout dropout = buffers.dropout(dropout_of(c));
  RecordedGraph<Cuda> graph(stream, "attention", [&] {
    buffers.forward(attention, dropout);
    buffers.backward(attention, dropout);
  });
  CHECK(std::isnan(buffers.results().output[0]));
  graph.replay();
  CHECK(same_bits(buffers.results(), eager));
}

TEST_CASE("float, dropout, odd and large heads take the portable engine") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  const double probability = 0.1;
  const AttentionDropout dropout{&probability, nullptr, 0};
  CHECK(attention.engine<float>({1, 128, 2, 2, 64, 1.0F}, {}) == AttentionEngine::portable);
  CHECK(attention.engine<bfloat16>({1, 128, 2, 2, 64, 1.0F}, dropout) == AttentionEngine::portable);
  CHECK(attention.engine<bfloat16>({1, 128, 2, 2, 60, 1.0F}, {}) == AttentionEngine::portable);
  CHECK(attention.engine<bfloat16>({1, 128, 2, 2, 256, 1.0F}, {}) == AttentionEngine::portable);
}

// Whether this build has cuDNN is a matter of configuration; where it has, bfloat16 on a GPU of compute capability 8
// or newer must use it.
TEST_CASE("cuDNN attention and its gradients agree with the definition and with the portable engine") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  if (!forces_cudnn(attention)) return;
  Attention<Cuda> portable(stream);
  portable.force(AttentionEngine::portable);
  for (const Case& c : cases_of_cudnn()) check_engine(AttentionEngine::cudnn, stream, attention, portable, c);
}

TEST_CASE("cuDNN takes attention with sinks, and agrees with the definition and the portable engine") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  if (!forces_cudnn(attention)) return;
  Attention<Cuda> portable(stream);
  portable.force(AttentionEngine::portable);
  for (const Case& c : cases_with_sinks())
    check_engine(AttentionEngine::cudnn, stream, attention, portable, c);
}

TEST_CASE(
    "attention on matrix units and its gradients agree with the definition and with the portable engine") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  attention.force(AttentionEngine::matrix_units);
  Attention<Cuda> portable(stream);
  portable.force(AttentionEngine::portable);
  for (const Case& c : cases_of_matrix_units())
    check_engine(AttentionEngine::matrix_units, stream, attention, portable, c);
}

TEST_CASE("attention on matrix units turns queries and keys, and their gradients back") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  attention.force(AttentionEngine::matrix_units);
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionShape shape{2, 61, 6, 2, head_dim, scale_of(head_dim)};
    CHECK(attention.rotates_gradients<bfloat16>(shape, {}));
    CHECK(attention.rotates_inputs<bfloat16>(shape, {}));
    check_rotations(stream, attention, shape);
  }
}

TEST_CASE("attention on matrix units has the same bits every time and when replayed") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  attention.force(AttentionEngine::matrix_units);
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{1, 128, 4, 4, 64, scale_of(64)}, {1, 1000, 12, 4, 64, scale_of(64), 300}})
    check_replays(stream, attention, {shape, HeadsLayout::packed});
}

TEST_CASE("attention on matrix units refuses what it does not compute when it is forced") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  attention.force(AttentionEngine::matrix_units);
  CHECK_THROWS_AS(attention.engine<float>({1, 128, 2, 2, 64, 1.0F}, {}), encore::DeviceError);
  CHECK_THROWS_AS(attention.engine<bfloat16>({1, 128, 2, 2, 32, 1.0F}, {}), encore::DeviceError);
  CHECK_THROWS_AS(attention.engine<bfloat16>({1, 128, 2, 2, 64, -1.0F}, {}), encore::DeviceError);
  // The other engines cannot turn gradients back.
  attention.force(AttentionEngine::portable);
  const AttentionShape shape{1, 33, 2, 2, 64, 0.1F};
  CHECK_FALSE(attention.rotates_gradients<bfloat16>(shape, {}));
  AttentionBuffers<Cuda, bfloat16> buffers(stream, AttentionProblem<bfloat16>(shape, HeadsLayout::packed));
  buffers.forward(attention);
  CHECK_THROWS_AS(buffers.backward(attention, {}, buffers.rotation(false)), encore::InternalError);
}

TEST_CASE("cuDNN attention has the same bits every time and when replayed, with and without a window") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  if (!forces_cudnn(attention)) return;
  for (const std::int64_t window : {0, 256})
    check_replays(stream, attention, {{2, 1024, 8, 2, 64, scale_of(64), window}, HeadsLayout::packed});
}

TEST_CASE("operands that cuDNN cannot address go to the portable engine, and are refused when it is forced") {
  Stream<Cuda> stream;
  Attention<Cuda> attention(stream);
  // 36 is no multiple of 8, so that the second head's addresses are no multiples of 16 bytes.
  const Case c{{1, 50, 2, 2, 36, scale_of(36)}, HeadsLayout::packed};
  check<bfloat16>(c, run<bfloat16>(c, stream, attention), 1e-2, 3e-2);
  try {
    attention.force(AttentionEngine::cudnn);
  } catch (const encore::DeviceError&) {
    return;
  }
  CHECK_THROWS_AS((run<bfloat16>(c, stream, attention)), encore::DeviceError);
}
