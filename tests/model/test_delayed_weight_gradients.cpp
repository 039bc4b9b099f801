// SPDX-License-Identifier: Apache-2.0
#include "step_traces.hpp"

#include <doctest/doctest.h>

namespace {

using namespace encore;
using namespace encore::tests;

const std::vector<std::vector<std::string>> policies{{"graph.impl=none"},
                                                     {"graph.impl=layer"},
                                                     {"graph.impl=layer", "graph.modules=attn"},
                                                     {"graph.impl=layer", "graph.modules=mlp"},
                                                     {"graph.impl=layer", "graph.modules=attn,mlp"},
                                                     {"graph.impl=full_iteration"}};

TEST_CASE("delayed weight gradients are the same bits under every policy, with and without dropout") {
  for (const std::string& backend : backend_names())
    for (const char* family : {"gpt2", "llama"})
      for (const char* dropout : {"model.dropout=0.1", "model.dropout=0"}) {
        CAPTURE(backend);
        CAPTURE(family);
        CAPTURE(dropout);
        const auto trace = [&](std::vector<std::string> more) {
          for (const std::string& setting :
               {"backend=" + backend, std::string(dropout), std::string("train.microbatches=2")})
            more.push_back(setting);
          return trace_steps(resolve(tiny_model(family), more), 10);
        };
        const StepTrace plain = trace({"graph.impl=none"});
        for (std::vector<std::string> policy : policies) {
          CAPTURE(policy[0] + " " + policy.back());
          policy.emplace_back("train.delay_wgrad=true");
          const StepTrace delayed = trace(policy);
          CHECK(first_difference(delayed, plain) == "");
          CHECK(delayed.refusal == "");
        }
      }
}

TEST_CASE("delaying, recomputing and pipelining together change no bit") {
  auto settings = tiny_model("llama");
  for (const char* setting : {"model.layers=4", "model.dropout=0.1", "model.attention_dropout=0.1",
                              "train.microbatches=4", "train.microbatch=1"})
    settings.emplace_back(setting);
  for (const std::string& backend : backend_names()) {
    const auto trace = [&](std::vector<std::string> more) {
      more.push_back("backend=" + backend);
      return trace_steps(resolve(settings, more), 5);
    };
    const StepTrace plain = trace({"graph.impl=none"});
    for (const char* recompute : {"", "attn", "mlp", "attn,mlp", "full"})
      for (const std::vector<std::string>& pipeline : {std::vector<std::string>{"parallel.pipeline=1"},
                                                       {"parallel.pipeline=4"},
                                                       {"parallel.pipeline=2", "parallel.virtual_stages=2"}})
        for (const char* impl : {"graph.impl=layer", "graph.impl=full_iteration"}) {
          CAPTURE(backend);
          CAPTURE(recompute);
          CAPTURE(pipeline.back());
          CAPTURE(impl);
          auto more = pipeline;
          more.emplace_back(impl);
          more.push_back(std::string("train.recompute=") + recompute);
          more.emplace_back("train.delay_wgrad=true");
          CHECK(first_difference(trace(more), plain) == "");
        }
  }
}

TEST_CASE("delayed weight gradients come behind all other backward segments of their chunk") {
  const auto trainer = model::make_trainer(
      resolve(tiny_model("llama"), {"backend=serial", "train.delay_wgrad=true", "train.microbatches=2",
                                    "parallel.pipeline=2", "graph.impl=layer"}));
  std::vector<std::string> names;
  for (const graph::Segment& segment : trainer->outline().segments()) {
    if (segment.microbatch != 1 || segment.phase == graph::Phase::forward) continue;
    names.push_back(segment.name.substr(segment.name.find('/') + 1));
    CHECK((segment.phase == graph::Phase::weight_gradient) == segment.name.ends_with("/weight_gradient"));
  }
  CHECK(names == std::vector<std::string>{"head/backward", "layer.1/mlp/backward", "layer.1/attn/backward",
                                          "layer.1/mlp/weight_gradient", "layer.1/attn/weight_gradient",
                                          "layer.0/mlp/backward", "layer.0/attn/backward",
                                          "embedding/backward", "layer.0/mlp/weight_gradient",
                                          "layer.0/attn/weight_gradient"});
}

TEST_CASE("a segment that computes input gradients writes no weight gradient when those are delayed") {
  const auto trainer =
      model::make_trainer(resolve(tiny_model("gpt2"), {"backend=serial", "train.delay_wgrad=true"}));
  const graph::Outline& outline = trainer->outline();
  for (const graph::Segment& segment : outline.segments()) {
    if (segment.layer < 0 || segment.phase != graph::Phase::backward) continue;
    for (const graph::BufferId id : segment.writes)
      if (const std::string& name = outline.buffer(id).name; name.ends_with(".gradient"))
        CHECK(name.find("/norm.") != std::string::npos);
  }
}

}  // namespace
