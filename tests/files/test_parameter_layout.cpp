// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/huggingface_configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>
#include <encore/model/files/presets.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

using namespace encore::model;

namespace {

using Shape = std::vector<std::int64_t>;

ModelConfiguration model_of(const std::vector<std::string>& assignments) {
  ConfigurationSources sources;
  for (const char* assignment :
       {"model.layers=4", "model.hidden=16", "model.heads=4", "model.vocab=24", "model.seq=32"})
    sources.assignment(assignment);
  for (const std::string& assignment : assignments) sources.assignment(assignment);
  return sources.resolve().configuration.model;
}

std::vector<ModelConfiguration> models_of_every_family() {
  return {model_of({"model.family=gpt2"}),
          model_of({"model.family=llama", "model.qkv_bias=true", "model.kv_heads=2"}),
          model_of({"model.family=qwen3", "model.head_dim=8", "model.tie_embeddings=true"}),
          model_of({"model.family=qwen3_moe", "model.pattern=*-*E", "model.experts=6", "model.shared_ffn=10",
                    "model.expert_bias=true"}),
          model_of({"model.family=mixtral", "model.experts=3", "model.pattern=~E", "model.sliding_window=8"}),
          model_of({"model.family=gpt_oss", "model.experts=3", "model.expert_ffn=6"}),
          ConfigurationSources()
              .assignment("model.family=mamba2")
              .assignment("model.layers=3")
              .assignment("model.hidden=16")
              .assignment("model.vocab=24")
              .assignment("model.seq=32")
              .assignment("model.mamba_head_dim=8")
              .assignment("model.mamba_groups=2")
              .assignment("model.mamba_bias=true")
              .resolve()
              .configuration.model,
          model_of({"model.family=nemotron_h", "model.pattern=M*-E", "model.experts=4", "model.shared_ffn=9",
                    "model.mamba_head_dim=8", "model.mamba_groups=4"})};
}

Shape shape_of(const ParameterLayout& layout, const std::string& name) {
  REQUIRE(layout.contains(name));
  return layout.parameter(name).shape;
}

/// Shapes of the tensors of published files, by name.
std::map<std::string, Shape> published(const ParameterLayout& layout) {
  std::map<std::string, Shape> shapes;
  for (const ParameterSlice& slice : layout.slices()) shapes[slice.name] = slice.shape;
  return shapes;
}

}  // namespace

TEST_CASE("the tensors of every form of a parameter cover it once, in one order") {
  for (const ModelConfiguration& model : models_of_every_family()) {
    CAPTURE(model.family);
    const ParameterLayout layout(model, false);
    std::set<std::string> names;
    for (const Parameter& parameter : layout.parameters()) {
      CAPTURE(parameter.name);
      CHECK(&layout.parameter(parameter.name) == &parameter);
      std::vector<std::vector<ParameterSlice>> forms = parameter.other_forms;
      forms.push_back(parameter.slices);
      for (const auto& form : forms) {
        std::int64_t next = parameter.offset;
        for (const ParameterSlice& slice : form) {
          CHECK(slice.offset == next);
          CHECK(names.insert(slice.name).second);
          next += slice.elements();
        }
        CHECK(next == parameter.offset + parameter.elements());
      }
    }
    CHECK(layout.parameter_count() == parameter_count(model));
    CHECK_FALSE(layout.contains("layer.0/attn"));
    CHECK_THROWS_AS(layout.parameter("layer.0/attn"), encore::InternalError);
  }
}

TEST_CASE("parameters with weight decay lie before the others, and none overlaps another") {
  for (const ModelConfiguration& model : models_of_every_family())
    for (const bool decay_all : {false, true}) {
      const ParameterLayout layout(model, decay_all);
      std::vector<Parameter> parameters = layout.parameters();
      std::ranges::sort(parameters, {}, &Parameter::offset);
      std::int64_t end = 0;
      for (const Parameter& parameter : parameters) {
        CHECK(parameter.offset % ParameterLayout::alignment == 0);
        CHECK(parameter.offset >= end);
        CHECK(parameter.decays == (parameter.offset < layout.decayed_elements()));
        end = parameter.offset + parameter.elements();
      }
      CHECK(end <= layout.elements());
      CHECK((layout.decayed_elements() == layout.elements()) == decay_all);
    }
}

TEST_CASE("weight decay is for matrices: not for biases, normalization weights, sinks or Mamba's vectors") {
  std::set<std::string> kept;
  for (const ModelConfiguration& model : models_of_every_family()) {
    const ParameterLayout layout(model, false);
    for (const Parameter& parameter : layout.parameters())
      if (!parameter.decays) kept.insert(parameter.name.substr(parameter.name.find('/') + 1));
  }
  CHECK(kept == std::set<std::string>{"norm.weight",
                                      "norm.bias",
                                      "attn/norm.weight",
                                      "attn/norm.bias",
                                      "attn/qkv.bias",
                                      "attn/output.bias",
                                      "attn/query_norm.weight",
                                      "attn/key_norm.weight",
                                      "attn/sinks",
                                      "mlp/norm.weight",
                                      "mlp/norm.bias",
                                      "mlp/up.bias",
                                      "mlp/down.bias",
                                      "moe/norm.weight",
                                      "moe/router.bias",
                                      "moe/up.bias",
                                      "moe/down.bias",
                                      "mamba/norm.weight",
                                      "mamba/in.bias",
                                      "mamba/convolution.bias",
                                      "mamba/step_bias",
                                      "mamba/decay_log",
                                      "mamba/skip",
                                      "mamba/gate_norm.weight",
                                      "mamba/out.bias"});
}

TEST_CASE("experts are published one by one and read from one tensor too") {
  const ParameterLayout layout(
      model_of({"model.family=qwen3_moe", "model.pattern=*-*E", "model.experts=6", "model.expert_ffn=10",
                "model.shared_ffn=12", "model.expert_bias=true"}),
      false);
  CHECK(shape_of(layout, "layer.1/moe/up.weight") == Shape{6, 20, 16});
  CHECK(shape_of(layout, "layer.1/moe/down.weight") == Shape{6, 16, 10});
  CHECK(shape_of(layout, "layer.1/moe/router.weight") == Shape{6, 16});
  CHECK(shape_of(layout, "layer.1/moe/shared_up.weight") == Shape{24, 16});
  CHECK_FALSE(layout.contains("layer.0/moe/up.weight"));
  CHECK_FALSE(layout.contains("layer.1/moe/router.bias"));
  const auto shapes = published(layout);
  CHECK(shapes.at("model.layers.1.mlp.experts.5.gate_proj.weight") == Shape{10, 16});
  CHECK(shapes.at("model.layers.1.mlp.experts.5.down_proj.weight") == Shape{16, 10});
  CHECK(shapes.at("model.layers.1.mlp.gate.weight") == Shape{6, 16});
  CHECK(shapes.at("model.layers.0.mlp.gate_proj.weight") == Shape{64, 16});
  const Parameter& up = layout.parameter("layer.1/moe/up.weight");
  CHECK(up.slices.at(3).name == "model.layers.1.mlp.experts.1.up_proj.weight");
  CHECK(up.slices.at(3).offset == up.offset + 3 * 160);

  const std::string fused = "model.layers.1.mlp.experts.gate_up_proj";
  const auto slices = layout.slices_in([&](const std::string& name) {
    return name == fused || (name.find(".up_proj") == std::string::npos && shapes.contains(name));
  });
  const auto found = std::ranges::find(slices, fused, &ParameterSlice::name);
  REQUIRE(found != slices.end());
  CHECK(found->shape == Shape{6, 20, 16});
  CHECK(found->offset == up.offset);
  // Of the down projections the file has the published form, and of layer 3 neither form is whole.
  CHECK(std::ranges::find(slices, "model.layers.1.mlp.experts.0.down_proj.weight", &ParameterSlice::name) !=
        slices.end());
  CHECK(std::ranges::find(slices, "model.layers.3.mlp.experts.2.up_proj.weight", &ParameterSlice::name) !=
        slices.end());
  CHECK(layout.slices_in([](const std::string&) { return false; }).size() == shapes.size());

  REQUIRE(layout.expert_biases().size() == 2);
  CHECK(layout.expert_biases().at(1).name == "model.layers.3.mlp.gate.e_score_correction_bias");
  CHECK(layout.expert_biases().at(1).shape == Shape{6});
  CHECK(layout.expert_biases().at(1).offset == 6);
}

TEST_CASE("Mixtral, GPT-OSS, Mamba-2 and Nemotron-H have their own tensor names") {
  const auto mixtral = published(
      ParameterLayout(model_of({"model.family=mixtral", "model.experts=3", "model.expert_ffn=10"}), false));
  CHECK(mixtral.at("model.layers.2.block_sparse_moe.experts.2.w1.weight") == Shape{10, 16});
  CHECK(mixtral.at("model.layers.2.block_sparse_moe.experts.2.w2.weight") == Shape{16, 10});
  CHECK(mixtral.at("model.layers.2.block_sparse_moe.gate.weight") == Shape{3, 16});

  const auto gpt_oss = published(
      ParameterLayout(model_of({"model.family=gpt_oss", "model.experts=3", "model.expert_ffn=10"}), false));
  CHECK(gpt_oss.at("model.layers.0.mlp.experts.gate_up_proj") == Shape{3, 16, 20});
  CHECK(gpt_oss.at("model.layers.0.mlp.experts.down_proj_bias") == Shape{3, 16});
  CHECK(gpt_oss.at("model.layers.0.mlp.router.bias") == Shape{3});
  CHECK(gpt_oss.at("model.layers.0.self_attn.sinks") == Shape{4});

  const ParameterLayout nemotron(
      model_of({"model.family=nemotron_h", "model.pattern=M*-E", "model.experts=4", "model.mamba_groups=4",
                "model.mamba_heads=4", "model.mamba_head_dim=8", "model.mamba_state=3", "model.ffn=11"}),
      false);
  CHECK(shape_of(nemotron, "layer.0/mamba/convolution.weight") == Shape{56, 4});
  const auto names = published(nemotron);
  CHECK(names.at("backbone.layers.0.mixer.conv1d.weight") == Shape{56, 1, 4});
  CHECK(names.at("backbone.layers.0.mixer.in_proj.weight") == Shape{92, 16});
  CHECK(names.at("backbone.layers.0.norm.weight") == Shape{16});
  CHECK(names.at("backbone.layers.1.mixer.q_proj.weight") == Shape{16, 16});
  CHECK(names.at("backbone.layers.2.mixer.up_proj.weight") == Shape{11, 16});
  CHECK(names.at("backbone.layers.3.mixer.experts.3.up_proj.weight") == Shape{11, 16});
  CHECK(names.at("backbone.norm_f.weight") == Shape{16});
  REQUIRE(nemotron.expert_biases().size() == 1);
  CHECK(nemotron.expert_biases().front().name == "backbone.layers.3.mixer.gate.e_score_correction_bias");
  std::set<std::string> prefixes;
  for (const ParameterSlice& slice :
       nemotron.slices_in([](const std::string& name) { return name.starts_with("model."); }))
    prefixes.insert(slice.name.substr(0, slice.name.find('.')));
  CHECK(prefixes == std::set<std::string>{"model", "lm_head"});
}

TEST_CASE("Mamba's parameters start as its authors start them") {
  const ParameterLayout layout(models_of_every_family().at(6), false);
  CHECK(layout.parameter("layer.0/mamba/decay_log").initialization == Initialization::log_of_rank);
  CHECK(layout.parameter("layer.0/mamba/step_bias").initialization ==
        Initialization::inverse_softplus_of_step);
  CHECK(layout.parameter("layer.0/mamba/skip").initialization == Initialization::ones);
  CHECK(layout.parameter("layer.0/mamba/convolution.weight").initialization == Initialization::uniform);
  CHECK(layout.parameter("layer.0/mamba/convolution.weight").deviation == 0.5);
}
