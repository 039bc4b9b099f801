// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

using namespace encore::model;
using encore::ConfigurationError;

namespace {

using Assignments = std::vector<std::string>;

ConfigurationSources sources_of(const char* family, const Assignments& assignments) {
  ConfigurationSources sources;
  sources.json(R"({"model": {"layers": 4, "hidden": 64, "vocab": 96, "seq": 64}})", "small");
  sources.assignment(std::string("model.family=") + family);
  for (const std::string& assignment : assignments) sources.assignment(assignment);
  return sources;
}

ModelConfiguration model_of(const char* family, const Assignments& assignments) {
  return sources_of(family, assignments).resolve().configuration.model;
}

void check_refused(const char* family, const Assignments& assignments, const char* reason) {
  CAPTURE(reason);
  CHECK_THROWS_WITH_AS(model_of(family, assignments), doctest::Contains(reason), ConfigurationError);
}

}  // namespace

TEST_CASE("a family decides blocks, activation, router and norms unless they are given") {
  const ModelConfiguration qwen3 = model_of("qwen3", {"model.heads=4"});
  CHECK(qwen3.pattern == "*-");
  CHECK(qwen3.query_key_norm);
  CHECK(qwen3.ffn == 192);

  const ModelConfiguration sparse = model_of("qwen3_moe", {"model.heads=4", "model.experts=8"});
  CHECK(sparse.pattern == "*E");
  CHECK(sparse.topk == 2);
  CHECK(sparse.expert_ffn == 192);
  CHECK(sparse.ffn == 0);
  CHECK(sparse.router_score == RouterScore::softmax);
  CHECK(sparse.router_renormalize);
  CHECK_FALSE(sparse.expert_bias);
  CHECK(model_of("qwen3_moe", {"model.heads=4"}).pattern == "*-");
  CHECK(model_of("mixtral", {"model.heads=4", "model.experts=1"}).topk == 1);

  const ModelConfiguration gpt_oss = model_of("gpt_oss", {"model.heads=4", "model.experts=8"});
  CHECK(gpt_oss.activation == Activation::swiglu_clamped);
  CHECK(gpt_oss.router_score == RouterScore::softmax_of_largest);
  CHECK(gpt_oss.router_bias);
  CHECK(gpt_oss.mlp_bias);
  CHECK(gpt_oss.qkv_bias);
  CHECK(gpt_oss.attention_sinks);

  const ModelConfiguration mamba2 = model_of("mamba2", {});
  CHECK(mamba2.pattern == "M");
  CHECK(mamba2.position == Position::none);
  CHECK(mamba2.mamba_head_dim == 64);
  CHECK(mamba2.mamba_heads == 2);
  CHECK(mamba2.mamba_state == 128);
  CHECK(mamba2.heads == 0);
  CHECK(mamba2.head_dim == 0);
  CHECK(mamba2.ffn == 0);

  const ModelConfiguration nemotron =
      model_of("nemotron_h", {"model.heads=4", "model.experts=8", "model.mamba_groups=2"});
  CHECK(nemotron.pattern == "ME*-");
  CHECK(nemotron.activation == Activation::relu_squared);
  CHECK(nemotron.ffn == 256);
  CHECK(nemotron.router_score == RouterScore::sigmoid);
  CHECK(nemotron.expert_bias);
  CHECK(nemotron.mamba_norm_groups == 2);
  CHECK(model_of("nemotron_h", {"model.heads=4"}).pattern == "M-*-");
  CHECK(model_of("llama", {"model.heads=4", "model.rope_factor=4"}).rope_original_seq == 16);
}

TEST_CASE("a pattern is kept as its shortest stretch that repeats, and has no more letters than blocks") {
  const auto pattern = [](const char* family, const std::string& text) {
    return model_of(family,
                    {"model.heads=4", "model.experts=2", "model.sliding_window=8", "model.pattern=" + text})
        .pattern;
  };
  CHECK(pattern("gpt_oss", "~E*E~E*E") == "~E*E");
  CHECK(pattern("gpt_oss", "~E") == "~E");
  CHECK(pattern("gpt_oss", "~E*E*E*E") == "~E*E*E*E");
  CHECK(pattern("nemotron_h", "~EM-M*M-E") == "~EM-");
  CHECK(pattern("nemotron_h", "~E~") == "~E~");
  const ModelConfiguration model = model_of("nemotron_h", {"model.heads=4", "model.pattern=M*-"});
  const std::vector<std::vector<Block>> expected = {
      {Block::mamba}, {Block::attention}, {Block::mlp}, {Block::mamba}};
  CHECK(blocks_of_layers(model) == expected);
  CHECK(blocks_of_layers(model_of("llama", {"model.heads=4"})) ==
        std::vector<std::vector<Block>>(4, {Block::attention, Block::mlp}));
  CHECK(has_block(model, Block::mlp));
  CHECK_FALSE(has_block(model, Block::windowed_attention));
  check_refused("nemotron_h", {"model.heads=4", "model.pattern=MX"},
                "model.pattern = 'MX' (--set) must be at most 20000 of the letters M * ~ - E");
  check_refused("nemotron_h", {"model.pattern=" + std::string(20'001, 'M')}, "must be at most 20000");
}

TEST_CASE("blocks that a family does not have, and numbers that do not fit, are refused by name") {
  const auto with_heads = [](Assignments assignments) {
    assignments.push_back("model.heads=4");
    return assignments;
  };
  check_refused("llama", with_heads({"model.pattern=-*"}),
                "model.pattern = -* must be * or ~, and then -, for each layer of the family llama");
  check_refused("qwen3_moe", with_heads({"model.pattern=*-M", "model.experts=2"}), "and then - or E,");
  check_refused("mixtral", with_heads({"model.pattern=*-", "model.experts=2"}), "* or ~, and then E,");
  check_refused("mixtral", with_heads({}), "model.pattern = *- must be");
  check_refused("mamba2", with_heads({"model.pattern=M*"}), "must be M for each layer of the family mamba2");
  check_refused("qwen3_moe", with_heads({"model.pattern=*-", "model.experts=2"}),
                "model.experts = 2 needs a letter E in model.pattern = *-");
  check_refused("nemotron_h", {"model.pattern=E"}, "needs model.experts");
  check_refused("llama", with_heads({"model.pattern=~-"}), "model.sliding_window is missing");
  check_refused("llama", {}, "model.heads is missing");
  check_refused("mamba2", {"model.position=rope_half_split"},
                "model.position must be none in the family mamba2");
  check_refused("gpt_oss", with_heads({"model.experts=2", "model.activation=swiglu"}),
                "model.activation must be swiglu_clamped in the family gpt_oss");
  check_refused("nemotron_h", with_heads({"model.activation=gelu"}),
                "model.activation must be relu_squared or swiglu");
  check_refused("gpt2", with_heads({"model.attention_sinks=true"}),
                "model.attention_sinks must be false in the family gpt2");
  check_refused("llama", with_heads({"model.rope_factor=2", "model.rope_beta_fast=0.5"}),
                "model.rope_beta_fast = 0.5 must not be below model.rope_beta_slow = 1");
}

TEST_CASE("experts that do not fit their router are refused with both numbers") {
  const auto refused = [](const char* family, Assignments assignments, const char* reason) {
    assignments.insert(assignments.begin(), {"model.heads=4", "model.experts=8"});
    check_refused(family, assignments, reason);
  };
  refused("qwen3_moe", {"model.topk=9"}, "model.topk = 9 must not exceed model.experts = 8");
  refused("qwen3_moe", {"model.router_groups=3"},
          "model.experts = 8 must be a multiple of model.router_groups = 3");
  refused("qwen3_moe", {"model.router_groups=8"},
          "model.topk = 2 must not exceed the 1 experts of model.router_topk_groups = 1 groups");
  refused("qwen3_moe", {"model.router_groups=2", "model.router_topk_groups=3"},
          "model.router_topk_groups = 3 must not exceed model.router_groups = 2");
  refused("qwen3_moe", {"model.router_groups=4", "model.topk=3"},
          "model.topk = 3 must not exceed the 2 experts of model.router_topk_groups = 1 groups");
  refused("qwen3_moe", {"model.mlp_bias=true"}, "model.mlp_bias must be false for experts");
  refused("mixtral", {"model.router_bias=true"}, "model.router_bias must be false in the family mixtral");
  refused("gpt_oss", {"model.router_bias=false"}, "model.router_bias must be true in the family gpt_oss");
  refused("gpt_oss", {"model.mlp_bias=false"}, "model.mlp_bias must be true in the family gpt_oss");
  refused("gpt_oss", {"model.shared_ffn=8"}, "model.shared_ffn = 8 must be 0");
  refused("gpt_oss", {"model.expert_bias=true"}, "model.expert_bias must be false");
  refused("qwen3_moe", {"model.experts=4096", "model.layers=1000"}, "must be at most 1048576");
  refused("qwen3_moe",
          {"model.experts=4096", "model.expert_ffn=16777216", "model.hidden=1048576", "model.head_dim=8"},
          "more than the 1e+13 that make sense");
  refused("qwen3_moe", {"model.seq=16777216", "train.microbatch=32", "model.topk=8"},
          "times model.topk = 8 must be below 2^31 rows");
}

TEST_CASE("Mamba heads, groups and steps that do not fit each other are refused") {
  check_refused("mamba2", {"model.mamba_groups=3"},
                "model.mamba_heads = 2 must be a multiple of model.mamba_groups = 3");
  check_refused("mamba2", {"model.mamba_norm_groups=3"}, "must be a multiple of model.mamba_norm_groups = 3");
  check_refused("mamba2", {"model.mamba_head_dim=48"}, "unless model.mamba_heads is given");
  check_refused("mamba2", {"model.mamba_heads=3", "model.mamba_head_dim=40"},
                "must be a multiple of model.hidden = 64");
  check_refused("mamba2", {"model.mamba_step_minimum=2", "model.mamba_step_maximum=1"},
                "model.mamba_step_maximum = 1 must be 0 or at least model.mamba_step_minimum = 2");
  check_refused("mamba2", {"model.mamba_heads=65536", "model.mamba_head_dim=16384"},
                "must be at most 4194304");
  check_refused("mamba2", {"model.mamba_convolution=9"}, "a whole number from 2 to 8");
}

TEST_CASE("a key about what the model does not have is an error, or dropped for a stronger decision") {
  check_refused("llama", {"model.heads=4", "model.topk=3"},
                "model.topk (--set) has no meaning for this model: it is about layers of experts");
  check_refused("mamba2", {"model.heads=4"}, "model.heads (--set) has no meaning for this model");
  check_refused("llama", {"model.heads=4", "model.rope_beta_fast=3"}, "model.rope_factor above 1");
  check_refused("gpt_oss", {"model.heads=4", "model.experts=2", "model.router_renormalize=false"},
                "it is about layers of experts with another model.router_score");
  // The neutral value says nothing.
  CHECK(model_of("llama", {"model.heads=4", "model.experts=0", "model.shared_ffn=0"}) ==
        model_of("llama", {"model.heads=4"}));

  const ResolvedConfiguration dense =
      ConfigurationSources().preset("qwen3-30b-a3b").assignment("model.experts=0").resolve();
  CHECK(dense.configuration.model.pattern == "*-");
  CHECK(dense.configuration.model.topk == 0);
  REQUIRE(dense.notes.size() == 2);
  CHECK(dense.notes.front() ==
        "G-20: model.topk = 8 (preset qwen3-30b-a3b) was dropped because model.experts = 0 (--set): a later "
        "kind of source wins over an earlier one");
  const ResolvedConfiguration mamba =
      ConfigurationSources().preset("bytes").assignment("model.family=mamba2").resolve();
  CHECK(mamba.configuration.model.heads == 0);
  CHECK(mamba.notes.size() == 2);

  ModelConfiguration by_hand = model_of("llama", {"model.heads=4"});
  by_hand.topk = 2;
  CHECK_THROWS_WITH_AS(check(by_hand),
                       "model.topk = 2 has no meaning for this model: it is about layers of experts",
                       ConfigurationError);
}

TEST_CASE("entries tell which keys have a meaning for the model") {
  int about_mamba = 0;
  for (const auto& entry : sources_of("llama", {"model.heads=4"}).resolve().entries)
    if (entry.key.starts_with("model.mamba")) about_mamba += entry.has_meaning ? 1 : 0;
  CHECK(about_mamba == 0);
  for (const auto& entry : sources_of("mamba2", {}).resolve().entries)
    if (entry.key.starts_with("model.mamba")) CHECK(entry.has_meaning);
}

TEST_CASE("a router may choose among groups of one expert, whatever judges them") {
  const Assignments groups = {"model.heads=4", "model.experts=8", "model.router_groups=8",
                              "model.router_topk_groups=4"};
  for (const char* family : {"qwen3_moe", "nemotron_h"}) {
    Assignments assignments = groups;
    if (std::string(family) == "nemotron_h") assignments.emplace_back("model.pattern=M*-E");
    CHECK(model_of(family, assignments).router_groups == 8);
  }
}
