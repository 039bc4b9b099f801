// SPDX-License-Identifier: Apache-2.0
#include "step_traces.hpp"

#include <encore/backend/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace {

using namespace encore;
using namespace encore::tests;

std::vector<std::string> dropping_model(const std::string& family) {
  auto settings = tiny_model(family);
  for (const char* setting : {"model.dropout=0.1", "model.attention_dropout=0.1", "train.microbatches=2"})
    settings.emplace_back(setting);
  return settings;
}

const std::vector<std::string> recomputes{"", "attn", "mlp", "attn,mlp", "full"};

const std::vector<std::vector<std::string>> policies{{"graph.impl=none"},
                                                     {"graph.impl=layer"},
                                                     {"graph.impl=layer", "graph.modules=attn"},
                                                     {"graph.impl=layer", "graph.modules=mlp"},
                                                     {"graph.impl=layer", "graph.modules=attn,mlp"},
                                                     {"graph.impl=full_iteration"}};

void check_every_pair(const std::vector<std::string>& settings) {
  for (const std::string& backend : backend_names()) {
    CAPTURE(backend);
    const auto trace = [&](std::vector<std::string> more) {
      more.push_back("backend=" + backend);
      return trace_steps(resolve(settings, more), 10);
    };
    const StepTrace plain = trace({"graph.impl=none"});
    for (const std::string& recompute : recomputes)
      for (std::vector<std::string> policy : policies) {
        CAPTURE(recompute);
        CAPTURE(policy[0] + " " + policy.back());
        policy.push_back("train.recompute=" + recompute);
        const StepTrace recomputed = trace(policy);
        CHECK(first_difference(recomputed, plain) == "");
        CHECK(recomputed.refusal == "");
        CHECK((recomputed.report.mode == graph::StepMode::replay) == (policy[0] != "graph.impl=none"));
      }
  }
}

TEST_CASE(
    "case 21: GPT-2 with dropout trains to the same bits whatever is recomputed and whatever is captured") {
  check_every_pair(dropping_model("gpt2"));
}

TEST_CASE("Llama with dropout trains to the same bits whatever is recomputed and whatever is captured") {
  check_every_pair(dropping_model("llama"));
}

TEST_CASE("recomputing changes no bit without dropout and in bf16 either") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    const auto trace = [&](const std::string& recompute) {
      return trace_steps(resolve(tiny_model("llama"), {"backend=serial", "train.recompute=" + recompute,
                                                       std::string("train.precision=") + precision}),
                         5);
    };
    const StepTrace plain = trace("");
    for (const std::string& recompute : recomputes) {
      CAPTURE(recompute);
      CHECK(first_difference(trace(recompute), plain) == "");
    }
  }
}

TEST_CASE("QK norm, sinks and windows train to the same bits whatever is recomputed, delayed and captured") {
  const std::vector<std::vector<std::string>> models{
      {"model.family=qwen3", "model.ffn=48", "model.attention_dropout=0.1"},
      {"model.family=gpt_oss", "model.experts=4", "model.topk=2", "model.expert_ffn=24",
       "model.rope_factor=4", "model.rope_original_seq=8"}};
  for (const std::vector<std::string>& its_own : models)
    for (const char* precision : {"fp32", "bf16"}) {
      CAPTURE(its_own.front());
      CAPTURE(precision);
      const auto trace = [&](const std::vector<std::string>& more) {
        std::vector<std::string> settings{
            "model.layers=2",     "model.hidden=32",      "model.heads=4", "model.kv_heads=2",
            "model.head_dim=8",   "model.vocab=61",       "model.seq=16",  "model.sliding_window=5",
            "train.microbatch=2", "train.microbatches=2", "seed=5",        "backend=serial"};
        settings.push_back(its_own.front() == "model.family=qwen3" ? "model.pattern=~-*-"
                                                                   : "model.pattern=~E*E");
        settings.push_back(std::string("train.precision=") + precision);
        settings.insert(settings.end(), its_own.begin(), its_own.end());
        return trace_steps(resolve(settings, more), 6);
      };
      const StepTrace plain = trace({"graph.impl=none"});
      CHECK(plain.refusal == "");
      for (const char* recompute : {"train.recompute=attn", "train.recompute=full"})
        CHECK(first_difference(trace({recompute}), plain) == "");
      CHECK(first_difference(trace({"train.delay_wgrad=true", "graph.impl=layer"}), plain) == "");
      CHECK(first_difference(trace({"train.delay_wgrad=true", "train.recompute=attn"}), plain) == "");
    }
}

TEST_CASE("the more is recomputed, the less memory the activations take") {
  for (const char* family : {"gpt2", "llama"}) {
    CAPTURE(family);
    const auto arena = [&](const std::string& recompute, const std::string& layers) {
      return model::make_trainer(resolve(dropping_model(family), {"backend=serial", "model.layers=" + layers,
                                                                  "train.recompute=" + recompute}))
          ->memory_plan()
          .arena_bytes;
    };
    CHECK(arena("attn", "6") < arena("", "6"));
    CHECK(arena("mlp", "6") < arena("", "6"));
    CHECK(arena("attn,mlp", "6") < std::min(arena("attn", "6"), arena("mlp", "6")));
    CHECK(arena("full", "6") < arena("attn,mlp", "6"));
    // Each further layer keeps its input and nothing else: [sequences * tokens, hidden] of 4 bytes.
    CHECK(arena("full", "7") - arena("full", "6") == 2 * 16 * 32 * 4);
  }
}

TEST_CASE("a recomputed part has a segment of its own right before the backward that needs it") {
  const auto names = [](const std::string& recompute) {
    const auto trainer =
        model::make_trainer(resolve(tiny_model("llama"), {"backend=serial", "train.recompute=" + recompute}));
    std::vector<std::string> list;
    for (const graph::Segment& segment : trainer->outline().segments())
      if (segment.layer == 1 && segment.phase == graph::Phase::backward) list.push_back(segment.name);
    return list;
  };
  using Names = std::vector<std::string>;
  CHECK(names("") == Names{"layer.1/mlp/backward", "layer.1/attn/backward"});
  CHECK(names("attn,mlp") == Names{"layer.1/mlp/recompute", "layer.1/mlp/backward", "layer.1/attn/recompute",
                                   "layer.1/attn/backward"});
  CHECK(names("full") == Names{"layer.1/attn/recompute", "layer.1/mlp/recompute", "layer.1/mlp/backward",
                               "layer.1/attn/backward"});
}

TEST_CASE("what is to be recomputed is one of three names, and full stands alone") {
  CHECK_THROWS_WITH_AS(resolve(tiny_model("llama"), {"train.recompute=head"}),
                       doctest::Contains("G-38: train.recompute = 'head' (--set): "), ConfigurationError);
  CHECK_THROWS_WITH_AS(resolve(tiny_model("llama"), {"train.recompute=full,attn"}),
                       doctest::Contains("G-37: train.recompute = attn,full: it covers whole layers"),
                       ConfigurationError);
  const auto configuration = resolve(tiny_model("llama"), {"train.recompute=mlp,attn"});
  CHECK(configuration.train.recompute ==
        std::vector{model::RecomputeModule::attn, model::RecomputeModule::mlp});
}

}  // namespace
