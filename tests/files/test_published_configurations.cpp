// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/huggingface_configuration.hpp>

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "published_configurations.hpp"

using namespace encore::model;

namespace {

ModelConfiguration read(const std::string& text) {
  return read_huggingface_configuration(text, "config.json");
}

ModelConfiguration preset(const char* name) {
  ConfigurationSources sources;
  sources.preset(name);
  return sources.resolve().configuration.model;
}

}  // namespace

TEST_CASE("the published config.json of Qwen3 30B A3B is the model of its preset") {
  CHECK(read(qwen3_30b_a3b_file) == preset("qwen3-30b-a3b"));
}

TEST_CASE("the published config.json of Mixtral 8x7B is read") {
  const ModelConfiguration model = read(mixtral_8x7b_file);
  CHECK(model.pattern == "*E");
  CHECK(model.layers == 32);
  CHECK(model.experts == 8);
  CHECK(model.topk == 2);
  CHECK(model.expert_ffn == 14336);
  CHECK(model.rope_theta == 1e6);
}

TEST_CASE("the published config.json of GPT-OSS 20B is refused for its quantized weights alone") {
  CHECK_THROWS_WITH_AS(read(gpt_oss_20b_file), doctest::Contains("quantized weights are not read"),
                       encore::ConfigurationError);
  nlohmann::json dequantized = nlohmann::json::parse(gpt_oss_20b_file);
  dequantized.erase("quantization_config");
  CHECK(read(dequantized.dump()) == preset("gpt-oss-20b"));
}

TEST_CASE("the published config.json of Mamba-Codestral 7B is read") {
  const ModelConfiguration model = read(mamba_codestral_7b_file);
  CHECK(model.pattern == "M");
  CHECK(model.layers == 64);
  CHECK(model.mamba_heads == 128);
  CHECK(model.mamba_head_dim == 64);
  CHECK(model.mamba_groups == 8);
  CHECK(model.mamba_step_minimum == 0);
  CHECK(model.mamba_step_maximum == 0);
  CHECK_FALSE(model.tie_embeddings);
}

TEST_CASE(
    "the published config.json of Nemotron-H 8B is the model of its preset with transformers' time steps") {
  ModelConfiguration expected = preset("nemotron-h-like");
  expected.mamba_step_minimum = 0.001;
  CHECK(read(nemotron_h_8b_file) == expected);
}

TEST_CASE(
    "the published config.json of Nemotron 3 Nano is the model of its preset, longer and with such steps") {
  ModelConfiguration expected = preset("nemotron-h-moe-like");
  expected.mamba_step_minimum = 0.001;
  expected.seq = 262144;
  CHECK(read(nemotron_3_nano_file) == expected);
}
