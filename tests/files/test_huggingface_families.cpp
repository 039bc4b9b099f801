// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/huggingface_configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>
#include <encore/model/files/safetensors_file.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "huggingface_texts.hpp"
#include "python_judge.hpp"
#include "temporary_folder.hpp"

using namespace encore::model;
using encore::ConfigurationError;
using nlohmann::json;

namespace {

ModelConfiguration read(const json& fields) {
  return read_huggingface_configuration(fields.dump(), "config.json");
}

/// The fields with some of them changed.
json with(json fields, const json& changes) {
  fields.update(changes);
  return fields;
}

void check_refused(const json& fields, const char* reason) {
  CAPTURE(reason);
  CHECK_THROWS_WITH_AS(read(fields), doctest::Contains(reason), ConfigurationError);
}

std::vector<std::filesystem::path> goldens() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(ENCORE_TEST_DATA "/goldens"))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  return files;
}

}  // namespace

TEST_CASE("the config.json of Qwen3 is understood") {
  const ModelConfiguration model = read(qwen3_json());
  CHECK(model.family == "qwen3");
  CHECK(model.pattern == "*-");
  CHECK(model.query_key_norm);
  CHECK(model.head_dim == 16);
  CHECK(model.norm_epsilon == 1e-6);
  CHECK_FALSE(model.qkv_bias);
  json no_head_dim = qwen3_json();
  no_head_dim.erase("head_dim");
  CHECK(read(no_head_dim).head_dim == 128);
  // The window counts only where it is used.
  CHECK(model.sliding_window == 0);
  const ModelConfiguration windowed =
      read(with(qwen3_json(), {{"use_sliding_window", true}, {"max_window_layers", 2}}));
  CHECK(windowed.pattern == "*-*-~-~-");
  CHECK(windowed.sliding_window == 9);
  CHECK(read(with(qwen3_json(),
                  {{"use_sliding_window", true},
                   {"layer_types",
                    {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}}))
            .pattern == "~-*-");
  check_refused(with(qwen3_json(), {{"layer_types", {"full_attention"}}}), "one for each");
  check_refused(with(qwen3_json(), {{"layer_types", {"a", "b", "c", "d"}}}), "only full_attention");
  check_refused(with(qwen3_json(), {{"use_sliding_window", 1}}), "true or false is expected");
}

TEST_CASE("the config.json of Qwen3 with experts is understood, its dense layers too") {
  const ModelConfiguration model = read(qwen3_moe_json());
  CHECK(model.pattern == "*-*E");
  CHECK(model.experts == 6);
  CHECK(model.topk == 2);
  CHECK(model.expert_ffn == 24);
  CHECK(model.ffn == 56);
  CHECK(model.head_dim == 8);
  CHECK(model.router_score == RouterScore::softmax);
  CHECK_FALSE(model.router_renormalize);
  CHECK(read(with(qwen3_moe_json(), {{"mlp_only_layers", {1}}})).pattern == "*-*-*-*E");
  const ModelConfiguration sparse = read(with(qwen3_moe_json(), {{"decoder_sparse_step", 1}}));
  CHECK(sparse.pattern == "*E");
  CHECK(sparse.ffn == 0);
  CHECK(read(with(qwen3_moe_json(), {{"decoder_sparse_step", 9}})).experts == 0);
  CHECK(read(with(qwen3_moe_json(), {{"norm_topk_prob", true}})).router_renormalize);
  CHECK(read(with(qwen3_moe_json(), {{"use_sliding_window", true}})).pattern == "~-~E");
  json other_name = qwen3_moe_json();
  other_name["num_local_experts"] = other_name["num_experts"];
  other_name.erase("num_experts");
  CHECK(read(other_name) == model);
  check_refused(with(qwen3_moe_json(), {{"decoder_sparse_step", 0}}), "a number from 1 on");
  check_refused(with(qwen3_moe_json(), {{"mlp_only_layers", {"1"}}}), "a list of whole numbers");
  check_refused(with(qwen3_moe_json(), {{"num_experts_per_tok", 7}}), "must not exceed model.experts = 6");
  other_name.erase("num_local_experts");
  check_refused(other_name, "config.json has no num_experts");
}

TEST_CASE("the config.json of Mixtral is understood") {
  const ModelConfiguration model = read(mixtral_json());
  CHECK(model.pattern == "*E");
  CHECK(model.experts == 4);
  CHECK(model.expert_ffn == 40);
  CHECK(model.router_renormalize);
  CHECK(model.rope_theta == 1e6);
  CHECK(model.norm_epsilon == 1e-5);
  CHECK_FALSE(model.query_key_norm);
  const ModelConfiguration windowed = read(with(mixtral_json(), {{"sliding_window", 7}}));
  CHECK(windowed.pattern == "~E");
  CHECK(windowed.sliding_window == 7);
  check_refused(with(mixtral_json(), {{"router_jitter_noise", 0.1}}), "'router_jitter_noise' = 0.1");
}

TEST_CASE("the config.json of GPT-OSS is understood") {
  const ModelConfiguration model = read(gpt_oss_json());
  CHECK(model.pattern == "~E*E");
  CHECK(model.sliding_window == 8);
  CHECK(model.attention_sinks);
  CHECK(model.qkv_bias);
  CHECK(model.attention_output_bias);
  CHECK(model.mlp_bias);
  CHECK(model.router_bias);
  CHECK(model.router_score == RouterScore::softmax_of_largest);
  CHECK(model.activation == Activation::swiglu_clamped);
  CHECK(model.swiglu_limit == 7);
  CHECK(model.rope_factor == 32);
  CHECK(model.rope_original_seq == 4096);
  CHECK(model.rope_beta_fast == 32);
  CHECK(model.rope_theta == 150000);
  CHECK_FALSE(model.rope_truncate);
  json silent = gpt_oss_json();
  silent.erase("rope_scaling");
  CHECK(read(silent) == model);
  const ModelConfiguration full =
      read(with(gpt_oss_json(), {{"layer_types", json::array({"full_attention", "full_attention"})},
                                 {"num_hidden_layers", 2}}));
  CHECK(full.pattern == "*E");
  CHECK(full.sliding_window == 0);
  check_refused(with(gpt_oss_json(), {{"swiglu_alpha", 2}}), "'swiglu_alpha' = 2");
  check_refused(
      with(gpt_oss_json(), {{"quantization_config", {{"quant_method", "mxfp4"}}}}),
      "config.json has a quantization_config with quant_method = \"mxfp4\", and quantized weights are "
      "not read: dequantize the checkpoint to bf16 first");
  check_refused(with(qwen3_moe_json(), {{"quantization_config", {{"bits", 4}}}}),
                "config.json has a quantization_config, and quantized weights are not read");
  check_refused(with(gpt_oss_json(), {{"attention_bias", "yes"}}), "model.qkv_bias = \"yes\"");
}

TEST_CASE("the config.json of Mamba-2 is understood") {
  const ModelConfiguration model = read(mamba2_json());
  CHECK(model.pattern == "M");
  CHECK(model.position == Position::none);
  CHECK(model.mamba_heads == 8);
  CHECK(model.mamba_head_dim == 8);
  CHECK(model.mamba_state == 16);
  CHECK(model.mamba_groups == 2);
  CHECK(model.mamba_norm_groups == 2);
  CHECK(model.mamba_bias);
  CHECK(model.mamba_convolution_bias);
  CHECK(model.mamba_step_minimum == 0);
  CHECK(model.mamba_step_maximum == 0);
  CHECK(model.heads == 0);
  const ModelConfiguration limited = read(with(mamba2_json(), {{"time_step_limit", {0.01, 0.06}}}));
  CHECK(limited.mamba_step_minimum == 0.01);
  CHECK(limited.mamba_step_maximum == 0.06);
  for (const char* infinity : {"Infinity", R"({"__float__": "Infinity"})"}) {
    std::string text = mamba2_json().dump();
    text.insert(1, fmt::format(R"("time_step_limit": [0.5, {}], )", infinity));
    CHECK(read_huggingface_configuration(text, "config.json").mamba_step_minimum == 0.5);
  }
  check_refused(with(mamba2_json(), {{"time_step_limit", {0.1}}}), "two bounds are expected");
  check_refused(with(mamba2_json(), {{"time_step_limit", {0.1, 0.01}}}), "model.mamba_step_maximum = 0.01");
  check_refused(with(mamba2_json(), {{"time_step_limit", {0.0, 0.0}}}), "no time step is at most 0");
  check_refused(with(mamba2_json(), {{"expand", 3}}), "because num_heads times head_dim is 64");
  CHECK(read(with(mamba2_json(), {{"intermediate_size", 64}, {"time_step_scale", 2.0}})) == model);
  check_refused(with(mamba2_json(), {{"intermediate_size", 96}}), "because num_heads times head_dim is 64");
  check_refused(with(mamba2_json(), {{"n_groups", 3}}), "must be a multiple of model.mamba_groups = 3");
}

TEST_CASE("the config.json of Nemotron-H is understood, as published and as transformers 5 writes it") {
  const ModelConfiguration model = read(nemotron_h_json());
  CHECK(model.pattern == "M*-E");
  CHECK(model.layers == 4);
  CHECK(model.activation == Activation::relu_squared);
  CHECK(model.position == Position::none);
  CHECK(model.mamba_norm_groups == 4);
  CHECK(model.mamba_step_minimum == 0.001);
  CHECK(model.experts == 8);
  CHECK(model.shared_ffn == 28);
  CHECK(model.router_score == RouterScore::sigmoid);
  CHECK(model.expert_bias);
  CHECK(model.router_groups == 4);
  CHECK(model.router_topk_groups == 2);
  CHECK(model.router_scale == 2.5);
  json words = nemotron_h_json();
  words.erase("hybrid_override_pattern");
  words.erase("num_hidden_layers");
  check_refused(words, "config.json has no hybrid_override_pattern");
  words["layers_block_type"] = {"linear_attention", "full_attention", "mlp", "moe"};
  CHECK(read(words) == model);
  words["layers_block_type"] = {"mamba", "attention", "mlp", "moe"};
  CHECK(read(words) == model);
  check_refused(with(words, {{"hybrid_override_pattern", "M*--"}}), "layers_block_type says something else");
  words["layers_block_type"] = {"other"};
  check_refused(words, "only linear_attention");
  const ModelConfiguration dense = read(with(nemotron_h_json(), {{"hybrid_override_pattern", "M*--"}}));
  CHECK(dense.experts == 0);
  CHECK(dense.ffn == 40);
  check_refused(with(nemotron_h_json(), {{"hybrid_override_pattern", "M~-E"}}), "only the letters");
  check_refused(with(nemotron_h_json(), {{"num_hidden_layers", 5}}), "because there are 4 blocks");
  check_refused(with(nemotron_h_json(), {{"moe_latent_size", 16}}), "'moe_latent_size' = 16");
  check_refused(with(nemotron_h_json(), {{"num_nextn_predict_layers", 1}}), "'num_nextn_predict_layers'");
  check_refused(with(nemotron_h_json(), {{"mlp_hidden_act", "silu"}}), "'mlp_hidden_act'");
  CHECK(read(with(nemotron_h_json(), {{"num_query_groups", 1}})) == model);
  check_refused(with(nemotron_h_json(), {{"num_query_groups", 2}}), "because num_key_value_heads is 1");
}

TEST_CASE("time steps of Nemotron-H have the bound that transformers gives them, and no file says another") {
  const auto limited = [](const json& lower, const json& upper) {
    return with(nemotron_h_json(), {{"time_step_min", 0.002}, {"time_step_limit", {lower, upper}}});
  };
  const char* const reason = "because transformers bounds the time steps by time_step_min = 0.002 alone";
  CHECK(read(limited(0.0, "Infinity")).mamba_step_minimum == 0.002);
  CHECK(read(limited(0.002, "Infinity")).mamba_step_minimum == 0.002);
  CHECK(read(limited(0.002, "Infinity")).mamba_step_maximum == 0);
  check_refused(limited(0.001, "Infinity"), reason);
  check_refused(limited(0.002, 0.1), reason);
  check_refused(limited(0.0, 0.1), reason);
  check_refused(limited(0.0, 0.0), "no time step is at most 0");
}

TEST_CASE("YaRN is read from both versions' fields") {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 8.0}, {"beta_fast", 16}, {"attention_factor", 1.3}};
  json parameters = yarn;
  parameters["rope_theta"] = 5000;
  const ModelConfiguration model = read(with(qwen3_json(), {{"rope_parameters", parameters}}));
  CHECK(model.rope_factor == 8);
  CHECK(model.rope_beta_fast == 16);
  CHECK(model.rope_beta_slow == 1);
  CHECK(model.rope_attention_factor == 1.3);
  CHECK(model.rope_original_seq == 64);
  CHECK(model.rope_theta == 5000);
  CHECK(read(with(qwen3_json(), {{"rope_scaling", yarn}, {"rope_theta", 5000}})) == model);
  check_refused(with(qwen3_json(), {{"rope_scaling", with(yarn, {{"factor", 1}})}}), "because factor is 1");
  check_refused(with(qwen3_json(), {{"rope_scaling", with(yarn, {{"factor", 0.5}})}}), "model.rope_factor");
}

TEST_CASE("a reference file's configuration is understood, and its tensors are all of the model's") {
  std::set<std::string> families;
  for (const auto& path : goldens()) {
    CAPTURE(path.filename().string());
    const SafetensorsFile file(path);
    const ModelConfiguration model =
        read_huggingface_configuration(file.metadata("config"), path.filename().string());
    families.insert(model.family);
    const ParameterLayout layout(model, false);
    std::set<std::string> expected, stored;
    for (const ParameterSlice& slice :
         layout.slices_in([&](const std::string& name) { return file.contains("w." + name); })) {
      expected.insert("w." + slice.name);
      REQUIRE(file.contains("w." + slice.name));
      CHECK(file.tensor("w." + slice.name).shape == slice.shape);
    }
    for (const std::string& name : file.names())
      if (name.starts_with("w.")) stored.insert(name);
    CHECK(stored == expected);
    CHECK(read_huggingface_configuration(write_huggingface_configuration(model, Precision::fp32), "again") ==
          model);
  }
  CHECK(families.size() == 8);
}

TEST_CASE("any model that the checks accept survives writing and reading") {
  const std::vector<std::string> pieces = {"model.query_key_norm=true",
                                           "model.query_key_norm=false",
                                           "model.attention_sinks=true",
                                           "model.pattern=~E",
                                           "model.pattern=*-~E",
                                           "model.pattern=~-",
                                           "model.pattern=M*~-E",
                                           "model.pattern=EM",
                                           "model.sliding_window=7",
                                           "model.experts=4",
                                           "model.topk=3",
                                           "model.expert_ffn=24",
                                           "model.shared_ffn=16",
                                           "model.shared_ffn=0",
                                           "model.router_score=softmax",
                                           "model.router_score=sigmoid",
                                           "model.router_renormalize=false",
                                           "model.expert_bias=true",
                                           "model.expert_bias=false",
                                           "model.router_groups=2",
                                           "model.router_scale=1.5",
                                           "model.rope_factor=4",
                                           "model.rope_original_seq=16",
                                           "model.rope_attention_factor=1.1",
                                           "model.rope_truncate=false",
                                           "model.position=none",
                                           "model.position=rope_interleaved",
                                           "model.mamba_groups=2",
                                           "model.mamba_norm_groups=2",
                                           "model.mamba_step_minimum=0.01",
                                           "model.mamba_step_maximum=1",
                                           "model.mamba_bias=true",
                                           "model.mamba_chunk=32",
                                           "model.qkv_bias=true",
                                           "model.tie_embeddings=true",
                                           "model.activation=swiglu",
                                           "model.layers=5",
                                           "model.seq=77",
                                           "model.swiglu_limit=3",
                                           "model.kv_heads=1",
                                           "model.dropout=0.25",
                                           "model.mlp_bias=true"};
  const std::vector<std::string> families = {"gpt2",    "llama",   "qwen3",  "qwen3_moe",
                                             "mixtral", "gpt_oss", "mamba2", "nemotron_h"};
  std::mt19937 random(5);
  std::set<std::string> seen;
  int written = 0;
  for (int round = 0; round < 4000; ++round) {
    ConfigurationSources sources;
    const std::string family = families[random() % families.size()];
    sources.json(R"({"model": {"layers": 4, "hidden": 64, "vocab": 32, "seq": 64}})", "f");
    sources.assignment("model.family=" + family);
    if (family != "mamba2") sources.assignment("model.heads=4");
    if (family == "mixtral" || family == "gpt_oss") sources.assignment("model.experts=4");
    std::string chosen = family;
    for (std::size_t i = random() % 5; i > 0; --i) {
      const std::string& piece = pieces[random() % pieces.size()];
      sources.assignment(piece);
      chosen += " " + piece;
    }
    CAPTURE(chosen);
    ModelConfiguration model;
    try {
      model = sources.resolve().configuration.model;
    } catch (const ConfigurationError&) {
      continue;
    }
    ++written;
    seen.insert(family);
    const std::string text = write_huggingface_configuration(model, Precision::bf16);
    CAPTURE(text);
    REQUIRE(read_huggingface_configuration(text, "config.json") == model);
    CHECK(ParameterLayout(model, false).parameter_count() == parameter_count(model));
  }
  CHECK(written > 500);
  CHECK(seen.size() == families.size());
}

TEST_CASE("what transformers would compute differently has another model_type") {
  const auto type_of = [](const char* preset, const std::vector<std::string>& assignments) {
    ConfigurationSources sources;
    sources.preset(preset);
    for (const std::string& assignment : assignments) sources.assignment(assignment);
    return json::parse(write_huggingface_configuration(sources.resolve().configuration.model,
                                                       Precision::bf16))["model_type"]
        .get<std::string>();
  };
  CHECK(type_of("qwen3-30b-a3b", {}) == "qwen3_moe");
  CHECK(type_of("gpt-oss-20b", {}) == "gpt_oss");
  CHECK(type_of("nemotron-h-like", {}) == "nemotron_h");
  CHECK(type_of("nemotron-h-moe-like", {}) == "nemotron_h");
  CHECK(type_of("nemotron-h-moe-like", {"model.shared_ffn=0"}) == "encore_nemotron_h");
  CHECK(type_of("moe-small", {}) == "encore_qwen3_moe");
  CHECK(type_of("moe-small", {"model.query_key_norm=true"}) == "qwen3_moe");
  CHECK(type_of("gpt-oss-20b", {"model.attention_sinks=false"}) == "encore_gpt_oss");
}

TEST_CASE("transformers loads the written config.json of every family as the same model") {
  const PythonJudge judge;
  if (!judge.has("transformers")) {
    MESSAGE("skipped: ENCORE_TEST_PYTHON or python3 has no transformers");
    return;
  }
  const TemporaryFolder folder;
  std::set<std::string> names;
  for (const auto& path : goldens()) {
    const std::string name = path.stem().string();
    const ModelConfiguration model =
        read_huggingface_configuration(SafetensorsFile(path).metadata("config"), name);
    std::filesystem::create_directory(folder / name);
    write_bytes(folder / (name + "/config.json"), write_huggingface_configuration(model, Precision::fp32));
    names.insert(name);
  }
  const auto answer = judge.run(R"(
import os, sys, transformers
for name in sorted(os.listdir(sys.argv[1])):
  c = transformers.AutoConfig.from_pretrained(sys.argv[1] + '/' + name)
  assert not c.model_type.startswith('encore'), name
  c.save_pretrained(sys.argv[1] + '/' + name)
)",
                                "'" + folder.path().string() + "'");
  INFO(answer.output);
  REQUIRE(answer.status == 0);
  for (const auto& path : goldens()) {
    const std::string name = path.stem().string();
    CAPTURE(name);
    CHECK(read_huggingface_configuration(read_bytes(folder / (name + "/config.json")), name) ==
          read_huggingface_configuration(SafetensorsFile(path).metadata("config"), name));
  }
}
