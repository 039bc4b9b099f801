// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/huggingface_configuration.hpp>
#include <encore/model/files/presets.hpp>
#include <encore/model/files/safetensors_file.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <numeric>
#include <string>
#include <tuple>

#include "golden_files.hpp"
#include "python_judge.hpp"
#include "temporary_folder.hpp"

using namespace encore::model;
using encore::ConfigurationError;

namespace {

// As transformers 5 writes it; the tests change one field at a time.
const std::string gpt2 =
    R"({"transformers_version": "5.17.0", "architectures": null, "output_hidden_states": false,
"return_dict": true, "dtype": null, "chunk_size_feed_forward": 0, "is_encoder_decoder": false,
"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "problem_type": null,
"vocab_size": 96, "n_positions": 32, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_inner": null,
"activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.2,
"layer_norm_epsilon": 1e-05, "initializer_range": 0.02, "summary_type": "cls_index", "summary_use_proj": true,
"summary_activation": null, "summary_proj_to_labels": true, "summary_first_dropout": 0.1, "scale_attn_weights": true,
"use_cache": true, "bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": null,
"scale_attn_by_inverse_layer_idx": false, "reorder_and_upcast_attn": false, "add_cross_attention": false,
"tie_word_embeddings": true, "_name_or_path": "", "model_type": "gpt2", "output_attentions": false})";

const std::string llama =
    R"({"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64,
"initializer_range": 0.03, "rms_norm_eps": 1e-06, "use_cache": true, "pad_token_id": null, "bos_token_id": 1,
"eos_token_id": 2, "pretraining_tp": 1, "tie_word_embeddings": false,
"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}, "attention_bias": false, "attention_dropout": 0.0,
"mlp_bias": false, "head_dim": 8, "model_type": "llama"})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t position = text.find(from);
  REQUIRE(position != std::string::npos);
  return text.replace(position, from.size(), to);
}

ModelConfiguration read(const std::string& json) {
  return read_huggingface_configuration(json, "config.json");
}

}  // namespace

TEST_CASE("the config.json of GPT-2 is understood") {
  const ModelConfiguration model = read(gpt2);
  CHECK(model.family == "gpt2");
  CHECK(model.vocab == 96);
  CHECK(model.seq == 32);
  CHECK(model.hidden == 48);
  CHECK(model.layers == 2);
  CHECK(model.heads == 4);
  CHECK(model.kv_heads == 4);
  CHECK(model.head_dim == 12);
  CHECK(model.ffn == 192);
  CHECK(model.activation == Activation::gelu_tanh);
  CHECK(model.normalization == Normalization::layer_norm);
  CHECK(model.position == Position::learned);
  CHECK(model.qkv_bias);
  CHECK(model.tie_embeddings);
  CHECK(model.dropout == 0.1);
  CHECK(model.attention_dropout == 0.2);
  CHECK(read(replaced(gpt2, "gelu_new", "gelu")).activation == Activation::gelu);
  CHECK(read(replaced(gpt2, "gelu_new", "gelu_pytorch_tanh")).activation == Activation::gelu_tanh);
  CHECK(read(replaced(gpt2, "\"n_inner\": null", "\"n_inner\": 100")).ffn == 100);
}

TEST_CASE("the config.json of Llama is understood, in the form of transformers 4 and of 5") {
  const ModelConfiguration model = read(llama);
  CHECK(model.family == "llama");
  CHECK(model.ffn == 80);
  CHECK(model.kv_heads == 2);
  CHECK(model.head_dim == 8);
  CHECK(model.seq == 64);
  CHECK(model.norm_epsilon == 1e-6);
  CHECK(model.rope_theta == 20000);
  CHECK(model.initializer_range == 0.03);
  CHECK_FALSE(model.tie_embeddings);
  CHECK(model.dropout == 0);
  const std::string rope = R"("rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"})";
  CHECK(read(replaced(llama, rope, R"("rope_theta": 20000, "rope_scaling": null)")) == model);
  CHECK(read(replaced(llama, rope, R"("rope_theta": 20000, "rope_scaling": {"type": "default"})")) == model);
  CHECK(read(replaced(llama, rope, R"("rope_theta": 20000.0, )" + rope)) == model);
  CHECK(read(replaced(llama, R"(, "head_dim": 8)", "")) == model);
  CHECK(read(replaced(llama, R"("num_key_value_heads": 2)", R"("num_key_value_heads": null)")).kv_heads == 6);
  CHECK(read(replaced(llama, "\"head_dim\": 8", "\"head_dim\": 16")).head_dim == 16);
  const ModelConfiguration biased =
      read(replaced(llama, "\"attention_bias\": false", "\"attention_bias\": true"));
  CHECK(biased.qkv_bias);
  CHECK(biased.attention_output_bias);
  CHECK_FALSE(biased.mlp_bias);
}

TEST_CASE("a feature that this version does not compute is refused by name") {
  for (const auto& [text, from, to, reason] :
       std::initializer_list<std::tuple<std::string, const char*, const char*, const char*>>{
           {gpt2, "gelu_new", "relu", "'activation_function' = \"relu\" of config.json is not supported"},
           {gpt2, "\"scale_attn_by_inverse_layer_idx\": false", "\"scale_attn_by_inverse_layer_idx\": true",
            "'scale_attn_by_inverse_layer_idx' = true"},
           {gpt2, "\"reorder_and_upcast_attn\": false", "\"reorder_and_upcast_attn\": true",
            "'reorder_and_upcast_attn'"},
           {gpt2, "\"add_cross_attention\": false", "\"add_cross_attention\": true", "'add_cross_attention'"},
           {gpt2, "\"scale_attn_weights\": true", "\"scale_attn_weights\": false", "only true"},
           {gpt2, "\"resid_pdrop\": 0.1", "\"resid_pdrop\": 0.3",
            "resid_pdrop = 0.3 and embd_pdrop = 0.1 differ"},
           {gpt2, "\"model_type\": \"gpt2\"", "\"model_type\": \"bert\"",
            "'model_type' = \"bert\" of config.json is not supported in this version, only gpt2, llama, "
            "qwen3"},
           {llama, "silu", "gelu", "'hidden_act' = \"gelu\""},
           {llama, "\"pretraining_tp\": 1", "\"pretraining_tp\": 2", "'pretraining_tp' = 2"},
           {llama, "\"rope_type\": \"default\"", "\"rope_type\": \"llama3\", \"factor\": 32",
            "'rope_type' = \"llama3\" of rope_parameters of config.json"},
           {llama, "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\", \"factor\": 4, \"mscale\": 2",
            "'mscale' = 2"},
           {llama, "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", "has no factor"},
           {llama, "\"rope_type\": \"default\"", "\"rope_type\": \"default\", \"factor\": 32",
            "'factor' = 32"},
           {llama, "\"rope_type\": \"default\"", "\"partial_rotary_factor\": 0.5",
            "'partial_rotary_factor' = 0.5"},
           {llama, "\"mlp_bias\": false", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
            "'type' = \"linear\""},
           {llama, "\"mlp_bias\": false", "\"rope_theta\": 10000.0",
            "because another rope_theta stands beside it"},
           {llama, "\"mlp_bias\": false", "\"sliding_window\": 4096", "'sliding_window' = 4096"},
           {llama, "\"mlp_bias\": false", "\"quantization_config\": {\"bits\": 4}",
            "config.json has a quantization_config, and quantized weights are not read"},
           {llama, "\"mlp_bias\": false", "\"encore\": {\"colour\": 1}",
            "'colour' = 1 of encore of config.json"},
           {llama, "\"mlp_bias\": false", "\"time_step_limit\": [0.0, Infinity]", "'time_step_limit'"}}) {
    CAPTURE(reason);
    CHECK_THROWS_WITH_AS(read(replaced(text, from, to)), doctest::Contains(reason), ConfigurationError);
  }
}

TEST_CASE("a missing, negative, absurd or mistyped field is refused with its name, key and range") {
  for (const auto& [text, from, to, reason] :
       std::initializer_list<std::tuple<std::string, const char*, const char*, const char*>>{
           {gpt2, "\"n_embd\": 48,", "", "config.json has no n_embd"},
           {gpt2, "\"n_embd\": 48", "\"n_embd\": null", "config.json has no n_embd"},
           {gpt2, "\"n_embd\": 48", "\"n_embd\": -48",
            "model.hidden = -48 (n_embd of config.json) must be a whole number"},
           {gpt2, "\"n_embd\": 48", "\"n_embd\": \"48\"", "model.hidden = \"48\" (n_embd of config.json)"},
           {gpt2, "\"n_embd\": 48", "\"n_embd\": 50",
            "model.hidden = 50 must be a multiple of model.heads = 4"},
           {gpt2, "\"n_layer\": 2", "\"n_layer\": 99999999999999999999",
            "model.layers = 1e+20 (n_layer of config.json)"},
           {gpt2, "1e-05", "NaN", "model.norm_epsilon = \"NaN\" (layer_norm_epsilon of config.json)"},
           {gpt2, "\"gelu_new\"", "7", "'activation_function' = 7"},
           {gpt2, "\"model_type\": \"gpt2\"", "\"model_type\": null", "config.json has no model_type"},
           {gpt2, "\"model_type\": \"gpt2\"", "\"model_type\": 3", "'model_type' = 3"},
           {llama, "\"hidden_size\": 48,", "", "config.json has no hidden_size"},
           {llama, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4",
            "must be a multiple of model.kv_heads = 4"},
           {llama, "\"head_dim\": 8", "\"head_dim\": 7", "model.head_dim = 7 must be even"},
           {llama, "{\"rope_theta\": 20000.0, \"rope_type\": \"default\"}", "3", "'rope_parameters' = 3"},
           {llama, "20000.0", "0", "model.rope_theta = 0 (rope_theta of rope_parameters of config.json)"}}) {
    CAPTURE(reason);
    CHECK_THROWS_WITH_AS(read(replaced(text, from, to)), doctest::Contains(reason), ConfigurationError);
  }
  CHECK_THROWS_WITH_AS(read("{"), doctest::Contains("config.json is not valid JSON"), encore::InputFileError);
  CHECK_THROWS_WITH_AS(read("[]"), "config.json is not a JSON object", encore::InputFileError);
}

TEST_CASE("every model that can be configured survives writing and reading") {
  for (const Preset& known : presets()) {
    for (const char* change :
         {"seed=1", "model.dropout=0.25", "model.attention_dropout=0.5", "model.activation=gelu",
          "model.position=rope_interleaved", "model.qkv_bias=true", "model.mlp_bias=true",
          "model.tie_embeddings=true", "model.norm_epsilon=3e-7", "model.rope_theta=77.5", "model.ffn=99",
          "model.initializer_range=0"}) {
      ModelConfiguration model;
      try {
        model = ConfigurationSources().preset(known.name).assignment(change).resolve().configuration.model;
      } catch (const ConfigurationError&) {
        continue;
      }
      CAPTURE(known.name);
      CAPTURE(change);
      CHECK(read(write_huggingface_configuration(model, Precision::bf16)) == model);
    }
  }
}

TEST_CASE("a model that transformers would compute differently does not claim to be a llama") {
  const auto written = [](const char* change) {
    return write_huggingface_configuration(
        ConfigurationSources().preset("bytes").assignment(change).resolve().configuration.model,
        Precision::fp32);
  };
  CHECK(written("seed=1").find("\"model_type\": \"llama\"") != std::string::npos);
  CHECK(written("model.dropout=0.1").find("\"model_type\": \"llama\"") != std::string::npos);
  CHECK(written("model.position=rope_interleaved").find("\"model_type\": \"encore_llama\"") !=
        std::string::npos);
  CHECK(written("model.qkv_bias=true").find("\"model_type\": \"encore_llama\"") != std::string::npos);
}

TEST_CASE("the reference files' configurations are understood and count their parameters") {
  for (const char* name : {"gpt2.safetensors", "llama.safetensors"}) {
    const auto path = golden_file(name);
    if (!path) {
      MESSAGE("skipped: there is no reference file " << name);
      continue;
    }
    CAPTURE(name);
    const SafetensorsFile file(*path);
    const ModelConfiguration model = read_huggingface_configuration(file.metadata("config"), name);
    std::int64_t count = 0;
    for (const StoredTensor& tensor : file.tensors())
      if (tensor.name.starts_with("w.")) count += tensor.elements();
    CHECK(parameter_count(model) == count);
    CHECK(file.float64("loss").size() == 4);
    CHECK(file.int64("labels").size() == 48);
  }
}

TEST_CASE("transformers loads the written config.json as the same model") {
  const PythonJudge judge;
  if (!judge.has("transformers")) {
    MESSAGE("skipped: ENCORE_TEST_PYTHON or python3 has no transformers");
    return;
  }
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "gpt2");
  std::filesystem::create_directory(folder / "llama");
  std::filesystem::create_directory(folder / "other");
  const auto model = [](const char* preset, const char* change) {
    return ConfigurationSources().preset(preset).assignment(change).resolve().configuration.model;
  };
  write_bytes(folder / "gpt2/config.json",
              write_huggingface_configuration(model("gpt2", "model.ffn=99"), Precision::fp32));
  write_bytes(folder / "llama/config.json",
              write_huggingface_configuration(model("llama-3.2-1b", "model.dropout=0.1"), Precision::bf16));
  write_bytes(
      folder / "other/config.json",
      write_huggingface_configuration(model("bytes", "model.position=rope_interleaved"), Precision::bf16));
  const auto answer = judge.run(R"(
import sys, transformers
c = transformers.AutoConfig.from_pretrained(sys.argv[1] + '/gpt2')
assert type(c).__name__ == 'GPT2Config'
assert (c.n_embd, c.n_layer, c.n_head, c.n_inner, c.n_positions, c.vocab_size) == (768, 12, 12, 99, 1024, 50257)
assert c.activation_function == 'gelu_new' and c.resid_pdrop == 0.1 and c.tie_word_embeddings
c = transformers.AutoConfig.from_pretrained(sys.argv[1] + '/llama')
assert type(c).__name__ == 'LlamaConfig'
assert (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads) == (2048, 16, 32, 8)
assert (c.intermediate_size, c.head_dim, c.vocab_size, c.rms_norm_eps) == (8192, 64, 128256, 1e-5)
rope = getattr(c, 'rope_parameters', None) or {'rope_theta': c.rope_theta, 'rope_type': 'default'}
assert rope['rope_theta'] == 500000 and rope['rope_type'] == 'default', rope
assert c.tie_word_embeddings and not c.attention_bias
c.save_pretrained(sys.argv[1] + '/again')
try: transformers.AutoConfig.from_pretrained(sys.argv[1] + '/other')
except ValueError as e: assert 'encore_llama' in str(e), e
else: raise AssertionError('encore_llama was accepted')
)",
                                "'" + folder.path().string() + "'");
  INFO(answer.output);
  REQUIRE(answer.status == 0);
  const ModelConfiguration again =
      read_huggingface_configuration(read_bytes(folder / "again/config.json"), "again");
  CHECK(again == model("llama-3.2-1b", "model.dropout=0.1"));
}
