// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/presets.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <string_view>

using namespace encore::model;
using encore::ConfigurationError;

TEST_CASE("every preset resolves, is described, and has its own name") {
  std::set<std::string_view> names;
  for (const Preset& known : presets()) {
    CAPTURE(known.name);
    CHECK(names.insert(known.name).second);
    CHECK_FALSE(known.help.empty());
    CHECK_NOTHROW(ConfigurationSources().preset(known.name).resolve());
  }
  CHECK_THROWS_WITH_AS(ConfigurationSources().preset("gpt2-125m"),
                       "there is no preset 'gpt2-125m' (did you mean 'gpt2-124m'?)", ConfigurationError);
  CHECK_THROWS_WITH_AS(ConfigurationSources().preset("x"),
                       doctest::Contains("there are bytes, hybrid, tiny-launch"), ConfigurationError);
  CHECK_THROWS_WITH_AS(ConfigurationSources().preset("bytes").preset("gpt2"),
                       "two presets, bytes and gpt2: choose one", ConfigurationError);
}

TEST_CASE("presets of public models have the public numbers of parameters") {
  const auto count = [](const char* name) {
    return parameter_count(ConfigurationSources().preset(name).resolve().configuration.model);
  };
  CHECK(count("gpt2") == 124'439'808);
  CHECK(count("gpt2-xl") == 1'557'611'200);
  CHECK(count("llama-3.2-1b") == 1'235'814'400);
  CHECK(count("llama-3-8b") == 8'030'261'248);
  CHECK(count("tinyllama-1.1b") == 1'100'048'384);
  CHECK(count("qwen3-30b-a3b") == 30'532'122'624);
  CHECK(count("gpt-oss-20b") == 20'914'757'184);
  CHECK(count("gpt-oss-120b") == 116'829'156'672);
  CHECK(count("nemotron-h-like") / 100'000'000 == 81);
  CHECK(count("nemotron-h-moe-like") / 100'000'000 == 315);
}

TEST_CASE("the peer's workloads have its shapes, types and optimizer") {
  const Configuration peer = ConfigurationSources().preset("gpt-1b").resolve().configuration;
  CHECK(peer.model.layers == 16);
  CHECK(peer.model.head_dim == 128);
  CHECK(peer.model.ffn == 8192);
  CHECK_FALSE(peer.model.tie_embeddings);
  CHECK(peer.model.norm_epsilon == 1e-5);
  CHECK(peer.train.seq == 2048);
  CHECK(peer.train.microbatch == 2);
  CHECK(peer.train.precision == Precision::bf16);
  CHECK(peer.train.gradient_type == Precision::bf16);
  CHECK(peer.train.optimizer_state == Precision::bf16);
  CHECK_FALSE(peer.train.master_weights);
  CHECK(peer.train.min_lr == 1e-4);
  CHECK(peer.train.clip == 0);
  // As the peer counts them: embedding, head, layers and norms.
  CHECK(parameter_count(peer.model) ==
        2 * 50304LL * 2048 + 16 * (4 * 2048LL * 2048 + 3 * 2048LL * 8192 + 2 * 2048) + 2048);
}

TEST_CASE("the peer's workloads of experts have its shapes") {
  const Configuration peer = ConfigurationSources().preset("moe-qwen3").resolve().configuration;
  CHECK(peer.model.pattern == "*E");
  CHECK(peer.model.head_dim == 64);
  CHECK_FALSE(peer.model.query_key_norm);
  CHECK(peer.model.router_score == RouterScore::softmax);
  CHECK(peer.model.router_renormalize);
  CHECK(peer.model.rope_theta == 1e4);
  CHECK(peer.train.balance_loss == 0);
  CHECK(peer.train.router_z_loss == 0);
  CHECK(peer.train.optimizer_state == Precision::bf16);
  // As the peer counts them: embedding and head, attention, router, experts, norms.
  CHECK(parameter_count(peer.model) == 2 * 32000LL * 2048 +
                                           4 * (2048LL * 64 * (32 + 2 * 4) + 32 * 64 * 2048LL + 128 * 2048 +
                                                128LL * 3 * 2048 * 768 + 2 * 2048) +
                                           2048);
  const ModelConfiguration small = ConfigurationSources().preset("moe-small").resolve().configuration.model;
  CHECK(parameter_count(small) ==
        2 * 8192LL * 512 + 8 * (4 * 512LL * 512 + 16 * 512 + 16LL * 3 * 512 * 1024 + 2 * 512) + 512);
}

TEST_CASE("small versions of public models have the layer shapes of the large ones") {
  for (const std::string name :
       {"qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "nemotron-h-like", "nemotron-h-moe-like"}) {
    CAPTURE(name);
    ModelConfiguration large = ConfigurationSources().preset(name).resolve().configuration.model;
    const ModelConfiguration small =
        ConfigurationSources().preset(name + "-small").resolve().configuration.model;
    CHECK(parameter_count(small) < 8'000'000'000);
    for (const Block block : {Block::mamba, Block::attention, Block::mlp, Block::experts})
      CHECK(has_block(large, block) == has_block(small, block));
    large.layers = small.layers;
    large.pattern = small.pattern;
    large.vocab = small.vocab;
    CHECK(large == small);
  }
}
