// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/policy.hpp>

#include <doctest/doctest.h>

namespace {

using namespace encore;
using namespace encore::graph;

/// Two layers and two microbatches: embedding, (attn, mlp) x 2, head, and back, then the optimizer.
Outline stack() {
  Outline outline;
  const auto add = [&](const std::string& name, Module module, Phase phase, int layer, int microbatch) {
    outline.add_segment({name, module, phase, layer, microbatch, {}, {}});
  };
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    const std::string prefix = "microbatch." + std::to_string(microbatch) + "/";
    add(prefix + "embedding/forward", Module::embedding, Phase::forward, -1, microbatch);
    for (int layer = 0; layer < 2; ++layer) {
      add(prefix + std::to_string(layer) + "/attn/forward", Module::attn, Phase::forward, layer, microbatch);
      add(prefix + std::to_string(layer) + "/mlp/forward", Module::mlp, Phase::forward, layer, microbatch);
    }
    add(prefix + "head/forward", Module::head, Phase::forward, -1, microbatch);
    add(prefix + "head/backward", Module::head, Phase::backward, -1, microbatch);
    for (int layer = 1; layer >= 0; --layer) {
      add(prefix + std::to_string(layer) + "/mlp/backward", Module::mlp, Phase::backward, layer, microbatch);
      add(prefix + std::to_string(layer) + "/attn/backward", Module::attn, Phase::backward, layer,
          microbatch);
    }
    add(prefix + "embedding/backward", Module::embedding, Phase::backward, -1, microbatch);
  }
  add("optimizer/norm", Module::optimizer, Phase::update, -1, -1);
  add("optimizer/adamw", Module::optimizer, Phase::update, -1, -1);
  return outline;
}

std::size_t captured(const std::vector<Run>& runs) {
  std::size_t count = 0;
  for (const Run& run : runs) count += run.captured;
  return count;
}

void check_cover(const std::vector<Run>& runs, const Outline& outline) {
  std::size_t next = 0;
  for (const Run& run : runs) {
    CHECK(run.first == next);
    CHECK(run.end > run.first);
    next = run.end;
  }
  CHECK(next == outline.segments().size());
}

TEST_CASE("no capture gives one eager run") {
  const auto runs = cut(stack(), {});
  CHECK(runs.size() == 1);
  CHECK(captured(runs) == 0);
  check_cover(runs, stack());
}

TEST_CASE("full iteration is one run over all microbatches, with the optimizer apart, inside or eager") {
  CapturePolicy policy{CaptureScope::full_iteration, {}, OptimizerCapture::separate, 0};
  auto runs = cut(stack(), policy);
  CHECK(runs.size() == 2);
  CHECK(captured(runs) == 2);
  check_cover(runs, stack());
  policy.optimizer = OptimizerCapture::joined;
  CHECK(cut(stack(), policy).size() == 1);
  policy.optimizer = OptimizerCapture::eager;
  runs = cut(stack(), policy);
  CHECK(runs.size() == 2);
  CHECK(captured(runs) == 1);
}

TEST_CASE("whole layers are captured forward and backward apart, per microbatch") {
  const auto runs = cut(stack(), {CaptureScope::layer, {}, OptimizerCapture::eager, 0});
  CHECK(captured(runs) == 2 * 2 * 2);
  check_cover(runs, stack());
}

TEST_CASE("modules select stretches inside layers") {
  const auto attn = cut(stack(), {CaptureScope::layer, {Module::attn}, OptimizerCapture::separate, 0});
  CHECK(captured(attn) == 2 * 2 * 2 + 1);
  check_cover(attn, stack());
  const auto both =
      cut(stack(), {CaptureScope::layer, {Module::attn, Module::mlp}, OptimizerCapture::eager, 0});
  CHECK(captured(both) == 2 * 2 * 2);
}

TEST_CASE("contradictory policies are refused") {
  CHECK_THROWS_AS(cut(stack(), {CaptureScope::full_iteration, {Module::attn}, OptimizerCapture::separate, 0}),
                  ConfigurationError);
  CHECK_THROWS_AS(cut(stack(), {CaptureScope::layer, {}, OptimizerCapture::joined, 0}), ConfigurationError);
}

}  // namespace
