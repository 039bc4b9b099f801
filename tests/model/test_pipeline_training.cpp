// SPDX-License-Identifier: Apache-2.0
#include "step_traces.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/order_check.hpp>
#include <encore/model/files/pipeline_schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

namespace {

using namespace encore;
using namespace encore::tests;

/// Four layers of width 16 over sequences of 8 tokens.
std::vector<std::string> four_layers(const std::string& family, const std::vector<std::string>& more) {
  std::vector<std::string> settings{"model.family=" + family,
                                    "model.layers=4",
                                    "model.hidden=16",
                                    "model.heads=2",
                                    "model.ffn=32",
                                    "model.vocab=31",
                                    "model.seq=8",
                                    "train.microbatch=1",
                                    "train.microbatches=8",
                                    "train.steps=200",
                                    "train.lr=0.01",
                                    "train.min_lr=0.01",
                                    "model.dropout=0.1",
                                    "seed=5",
                                    "model.attention_dropout=0.1"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<std::string> pipeline(std::int64_t stages, std::int64_t chunks, std::int64_t microbatches) {
  return {"parallel.pipeline=" + std::to_string(stages), "parallel.virtual_stages=" + std::to_string(chunks),
          "train.microbatches=" + std::to_string(microbatches)};
}

const std::vector<std::vector<std::string>> policies{{"graph.impl=full_iteration", "graph.optimizer=joined"},
                                                     {"graph.impl=layer"},
                                                     {"graph.impl=layer", "graph.modules=attn"},
                                                     {"graph.impl=layer", "graph.modules=attn,mlp"}};

TEST_CASE(
    "case 4: 200 steps of interleaved 1F1B with 4 chunks and 8 microbatches equal eager ones at every step") {
  for (const std::string& backend : backend_names()) {
    CAPTURE(backend);
    auto settings = four_layers("gpt2", pipeline(2, 2, 8));
    settings.push_back("backend=" + backend);
    const StepTrace eager = trace_steps(resolve(settings, {"graph.impl=none"}), 200);
    CHECK(eager.losses.back() < eager.losses.front());
    for (const double norm : eager.gradient_norms) REQUIRE(norm < 100);
    for (const auto& policy : policies) {
      CAPTURE(policy[0] + " " + policy.back());
      const StepTrace captured = trace_steps(resolve(settings, policy), 200);
      CHECK(first_difference(captured, eager) == "");
      CHECK(captured.refusal == "");
      CHECK(captured.report.mode == graph::StepMode::replay);
      CHECK(captured.report.fallbacks == 0);
    }
  }
}

TEST_CASE("without shared weights a pipeline changes no bit: neither sums nor dropout depend on its order") {
  const std::vector<std::string> serial{"backend=serial", "graph.impl=none"};
  const StepTrace plain = trace_steps(resolve(four_layers("llama", pipeline(1, 1, 8)), serial), 20);
  for (const auto& [stages, chunks] : std::vector<std::pair<int, int>>{{2, 1}, {4, 1}, {2, 2}}) {
    CAPTURE(stages);
    CAPTURE(chunks);
    const StepTrace piped =
        trace_steps(resolve(four_layers("llama", pipeline(stages, chunks, 8)), serial), 20);
    CHECK(first_difference(piped, plain) == "");
  }
}

TEST_CASE("with tied embeddings a pipeline gives the same gradients but for the order of sums") {
  const std::vector<std::string> serial{"backend=serial", "graph.impl=none"};
  const auto gradients_of = [&](std::int64_t stages, std::int64_t chunks) {
    const auto trace = trace_steps(resolve(four_layers("gpt2", pipeline(stages, chunks, 8)), serial), 1);
    return model::to_float(trace.gradients[0], backend::DataType::float32);
  };
  const std::vector<float> plain = gradients_of(1, 1);
  const double largest =
      std::abs(*std::ranges::max_element(plain, {}, [](float value) { return std::abs(value); }));
  CHECK(largest > 1e-3);
  for (const auto& [stages, chunks] : std::vector<std::pair<int, int>>{{2, 1}, {4, 1}, {2, 2}}) {
    CAPTURE(stages);
    CAPTURE(chunks);
    const std::vector<float> piped = gradients_of(stages, chunks);
    double worst = 0;
    for (std::size_t i = 0; i < plain.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(plain[i]) - piped[i]));
    CHECK(worst <= 1e-6 * largest);
  }
}

/// Memory plan and segments of a configuration that is never trained.
struct Planned {
  std::unique_ptr<model::Trainer> trainer;
  std::size_t arena() const { return trainer->memory_plan().arena_bytes; }
};

Planned plan_of(const std::vector<std::string>& settings, const std::vector<std::string>& more = {}) {
  auto all = more;
  all.push_back("backend=serial");
  return {model::make_trainer(resolve(settings, all))};
}

TEST_CASE("case 7: the arena grows with the microbatches in flight, not with the microbatches") {
  for (const char* family : {"gpt2", "llama"})
    for (const char* more : {"train.recompute=", "train.recompute=full", "train.delay_wgrad=true"}) {
      CAPTURE(family);
      CAPTURE(more);
      const auto arena = [&](std::int64_t stages, std::int64_t chunks, std::int64_t microbatches) {
        return static_cast<double>(
            plan_of(four_layers(family, pipeline(stages, chunks, microbatches)), {more}).arena());
      };
      const double two = arena(2, 1, 2);
      for (const std::int64_t microbatches : {8, 32})
        CHECK(arena(2, 1, microbatches) == doctest::Approx(two).epsilon(0.05));
      CHECK(arena(2, 2, 32) == doctest::Approx(arena(2, 2, 8)).epsilon(0.05));
      CHECK(arena(4, 1, 32) == doctest::Approx(arena(4, 1, 8)).epsilon(0.05));
      if (std::string(more) != "train.delay_wgrad=true") CHECK(two > 1.1 * arena(1, 1, 8));
      CHECK(arena(4, 1, 8) > 1.1 * two);
      CHECK(arena(2, 2, 8) > 1.1 * two);
    }
}

TEST_CASE("every stage keeps one set of buffers for each microbatch in flight, and no more") {
  for (const model::PipelineShape& shape :
       {model::PipelineShape{1, 1, 8}, {2, 1, 8}, {4, 1, 8}, {4, 1, 3}, {2, 2, 8}, {2, 2, 2}}) {
    CAPTURE(shape.stages);
    CAPTURE(shape.virtual_stages);
    auto settings = four_layers("llama", pipeline(shape.stages, shape.virtual_stages, shape.microbatches));
    settings.push_back("model.layers=" + std::to_string(shape.chunks()));  // one of each chunk
    const Planned planned = plan_of(settings);
    const graph::Outline& outline = planned.trainer->outline();
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
      std::vector<std::int64_t> changes(outline.segments().size() + 1, 0);
      for (const auto& activation : planned.trainer->memory_plan().activations) {
        const std::string& name = outline.buffer(activation.buffer).name;
        for (std::int64_t chunk = stage; chunk < shape.chunks(); chunk += shape.stages)
          if (name.ends_with("layer." + std::to_string(chunk) + "/attn/qkv")) {
            ++changes[activation.first_segment];
            --changes[activation.last_segment + 1];
          }
      }
      std::int64_t now = 0, most = 0;
      for (const std::int64_t change : changes) most = std::max(most, now += change);
      CHECK(most == model::in_flight(shape, stage));
    }
  }
}

/// The same program with a segment moved behind another one.
graph::Outline with_moved(const graph::Outline& outline, const std::string& moved,
                          const std::string& behind) {
  graph::Outline changed;
  for (const graph::Buffer& buffer : outline.buffers()) changed.add_buffer(buffer);
  const auto found = std::ranges::find(outline.segments(), moved, &graph::Segment::name);
  REQUIRE(found != outline.segments().end());
  for (const graph::Segment& segment : outline.segments()) {
    if (segment.name != moved) changed.add_segment(segment);
    if (segment.name == behind) changed.add_segment(*found);
  }
  REQUIRE(changed.segments().size() == outline.segments().size());
  return changed;
}

TEST_CASE("a backward that runs after the forward that reuses its buffers is caught by name") {
  const Planned planned = plan_of(four_layers("llama", pipeline(2, 1, 8)));
  const graph::Outline& outline = planned.trainer->outline();
  const graph::MemoryPlan& plan = planned.trainer->memory_plan();
  CHECK_NOTHROW(graph::audit(outline, plan));
  const std::string late = "microbatch.1/layer.0/attn/backward", early = "microbatch.3/layer.0/attn/forward";
  std::string sentence;
  try {
    graph::audit(with_moved(outline, late, early), plan);
  } catch (const InternalError& error) {
    sentence = error.what();
  }
  CAPTURE(sentence);
  CHECK(sentence.find("'microbatch.1/layer.0/attn/") != std::string::npos);
  CHECK(sentence.find("are alive together and share memory: 'microbatch.") != std::string::npos);
  CHECK(sentence.find("before '" + late + "' (segment ") != std::string::npos);
  CHECK(sentence.find("the memory plan was made for the opposite order") != std::string::npos);
}

TEST_CASE("an order that swaps the layers of a backward pass is caught by the residual gradient it spoils") {
  const Planned planned = plan_of(four_layers("llama", pipeline(2, 1, 8)));
  const graph::Outline& outline = planned.trainer->outline();
  CHECK_NOTHROW(graph::check_order(outline, outline));
  CHECK_THROWS_WITH_AS(graph::check_order(outline, with_moved(outline, "microbatch.1/layer.1/mlp/backward",
                                                              "microbatch.1/layer.1/attn/backward")),
                       "'microbatch.1/layer.1/attn/backward' writes 'microbatch.1/residual_gradient' before "
                       "'microbatch.1/layer.1/mlp/backward' writes it, in the planned order after",
                       InternalError);
}

TEST_CASE("every order that the plan's reuse of memory relies on is caught when it is broken") {
  const Planned planned = plan_of(four_layers("llama", pipeline(2, 2, 4)));
  const graph::Outline& outline = planned.trainer->outline();
  const graph::MemoryPlan& plan = planned.trainer->memory_plan();
  const auto reuses = graph::reuses(outline, plan);
  CHECK(reuses.size() > 100);
  int tried = 0;
  for (std::size_t i = 0; i < reuses.size(); i += 7) {
    const graph::PlaceReuse& reuse = reuses[i];
    REQUIRE(reuse.last_use < reuse.first_write);
    const std::string& last = outline.segments()[reuse.last_use].name;
    const std::string& next = outline.segments()[reuse.first_write].name;
    CAPTURE(graph::order_that_breaks(outline, reuse));
    CHECK_THROWS_AS(graph::audit(with_moved(outline, last, next), plan), InternalError);
    ++tried;
  }
  CHECK(tried > 10);
}

TEST_CASE("pipelines that cannot be made are refused with the numbers that do not fit") {
  const auto refused = [](const std::vector<std::string>& more, const char* sentence) {
    CHECK_THROWS_WITH_AS(resolve(four_layers("llama", {}), more), doctest::Contains(sentence),
                         ConfigurationError);
  };
  refused({"parallel.virtual_stages=2"}, "G-42: parallel.pipeline = 1 and parallel.virtual_stages = 2: ");
  refused({"parallel.pipeline=3"},
          "G-43: model.layers = 4 with parallel.pipeline = 3 and parallel.virtual_stages = 1: ");
  refused({"parallel.pipeline=2", "parallel.virtual_stages=4"},
          "G-43: model.layers = 4 with parallel.pipeline = 2 and parallel.virtual_stages = 4: ");
  refused({"parallel.pipeline=2", "parallel.virtual_stages=2", "train.microbatches=3"},
          "G-44: train.microbatches = 3 with parallel.pipeline = 2 and parallel.virtual_stages = 2: ");
  refused({"parallel.pipeline=65"}, "parallel.pipeline = 65 (--set) must be a whole number from 1 to 64");
}

}  // namespace
