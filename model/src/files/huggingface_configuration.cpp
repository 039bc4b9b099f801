// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/huggingface_configuration.hpp>

#include <encore/backend/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <variant>
#include <vector>

#include "huggingface_families.hpp"
#include "strict_json.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

constexpr std::array families_of_files = {
    HuggingFaceFamily{"gpt2", "GPT2LMHeadModel", read_gpt2, gpt2_fields},
    HuggingFaceFamily{"llama", "LlamaForCausalLM", read_llama, llama_fields},
    HuggingFaceFamily{"qwen3", "Qwen3ForCausalLM", read_qwen3, qwen3_fields},
    HuggingFaceFamily{"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe, qwen3_moe_fields},
    HuggingFaceFamily{"mixtral", "MixtralForCausalLM", read_mixtral, mixtral_fields},
    HuggingFaceFamily{"gpt_oss", "GptOssForCausalLM", read_gpt_oss, gpt_oss_fields},
    HuggingFaceFamily{"mamba2", "Mamba2ForCausalLM", read_mamba2, mamba2_fields},
    HuggingFaceFamily{"nemotron_h", "NemotronHForCausalLM", read_nemotron_h, nemotron_h_fields},
};

/// Before the model_type of a model that transformers would compute differently.
constexpr std::string_view own_prefix = "encore_";

const HuggingFaceFamily* find_family(std::string_view type) {
  const auto found = std::ranges::find(families_of_files, type, &HuggingFaceFamily::type);
  return found == families_of_files.end() ? nullptr : &*found;
}

const HuggingFaceFamily& family_of_file(HuggingFaceFields& fields) {
  if (fields.take("model_type") == nullptr)
    throw ConfigurationError(fmt::format("{} has no model_type", fields.source()));
  const std::string type = fields.text("model_type", {});
  std::string_view name = type;
  if (name.starts_with(own_prefix)) name.remove_prefix(own_prefix.size());
  const HuggingFaceFamily* const family = find_family(name);
  if (family != nullptr) return *family;
  std::vector<std::string_view> names;
  for (const HuggingFaceFamily& known : families_of_files) names.push_back(known.type);
  fields.refuse("model_type", fmt::format("only {}", fmt::join(names, ", ")));
}

/// The part of a key's name behind `model.`; empty for the other keys and for the family.
std::string_view model_detail(const Key& key) {
  constexpr std::string_view section = "model.";
  return key.name.starts_with(section) && key.name != "model.family" ? key.name.substr(section.size())
                                                                     : std::string_view();
}

void refuse_quantization(HuggingFaceFields& fields) {
  constexpr std::string_view field = "quantization_config";
  const nlohmann::json* const value = fields.take(field);
  if (value == nullptr || value->empty()) return;
  std::string method;
  if (value->is_object() && value->contains("quant_method"))
    method = fmt::format(" with quant_method = {}", printable(value->at("quant_method").dump()));
  throw ConfigurationError(
      fmt::format("{} has a {}{}, and quantized weights are not read: dequantize the checkpoint to bf16 "
                  "first, and leave the field out",
                  fields.source(), field, method));
}

/// What Hugging Face has no field for, as the writer below puts it.
void read_own_object(HuggingFaceFields& fields, Settings& settings) {
  const nlohmann::json* const value = fields.take("encore");
  if (value == nullptr) return;
  if (!value->is_object()) fields.refuse("encore", "an object is expected");
  HuggingFaceFields own(*value, fmt::format("encore of {}", fields.source()));
  for (const Key& key : key_table())
    if (const std::string_view name = model_detail(key); !name.empty()) own.use(name, key.name, settings);
  own.refuse_rest();
}

/// Files also tell what does not matter for their model: such settings are dropped.
ModelConfiguration resolved(const HuggingFaceFamily& family, Settings settings) {
  set(settings, "model.family", std::string(family.type));
  Configuration configuration;
  for (const Key& key : key_table())
    if (const auto found = settings.find(key.name); found != settings.end())
      key.assign(configuration, found->second.value);
  apply_defaults(configuration, settings);
  for (const Key& key : key_table())
    if (!model_detail(key).empty() && !has_meaning(key, configuration.model))
      key.assign(configuration, neutral_value(key));
  return configuration.model;
}

/// Whether the results of a trained model stay the same.
bool leaves_results_alone(std::string_view key) {
  return key == "model.dropout" || key == "model.attention_dropout" || key == "model.initializer_range" ||
         key == "model.seq" || key == "model.mamba_chunk";
}

/// The keys that the fields do not tell, or tell differently, with their values.
std::vector<std::pair<const Key*, Value>> details_beside(const nlohmann::ordered_json& fields,
                                                         const HuggingFaceFamily& family,
                                                         const ModelConfiguration& model) {
  const nlohmann::json document = fields;
  HuggingFaceFields written(document, "config.json");
  Configuration told, wanted;
  told.model = resolved(family, family.read(written));
  wanted.model = model;
  std::vector<std::pair<const Key*, Value>> details;
  for (const Key& key : key_table()) {
    if (model_detail(key).empty() || !has_meaning(key, model)) continue;
    if (Value value = key.read(wanted); value != key.read(told)) details.emplace_back(&key, std::move(value));
  }
  return details;
}

}  // namespace

ModelConfiguration read_huggingface_configuration(std::string_view json, std::string_view source) {
  nlohmann::json document;
  try {
    document = parse_json_object(json);
  } catch (const JsonProblem& problem) {
    throw InputFileError(fmt::format("{} {}", source, problem.what()));
  }
  HuggingFaceFields fields(document, std::string(source));
  const HuggingFaceFamily& family = family_of_file(fields);
  refuse_quantization(fields);
  Settings settings = family.read(fields);
  read_own_object(fields, settings);
  fields.refuse_rest();
  const ModelConfiguration model = resolved(family, std::move(settings));
  check(model);
  return model;
}

std::string write_huggingface_configuration(const ModelConfiguration& model, Precision stored_type) {
  check(model);
  const HuggingFaceFamily& family = *find_family(model.family);
  const nlohmann::ordered_json fields = family.write(model);
  nlohmann::ordered_json own = nlohmann::ordered_json::object();
  bool foreign = false;
  for (const auto& [key, value] : details_beside(fields, family, model)) {
    std::visit([&](const auto& held) { own[std::string(model_detail(*key))] = held; }, value);
    foreign = foreign || !leaves_results_alone(key->name);
  }
  nlohmann::ordered_json document = nlohmann::ordered_json::object();
  if (!foreign) document["architectures"] = {family.architecture};
  document["model_type"] = fmt::format("{}{}", foreign ? own_prefix : "", family.type);
  document.update(fields);
  if (!own.empty()) document["encore"] = std::move(own);
  // The classes' own defaults are the ids of another vocabulary.
  document["bos_token_id"] = nullptr;
  document["eos_token_id"] = nullptr;
  document["torch_dtype"] = stored_type == Precision::bf16 ? "bfloat16" : "float32";
  return document.dump(2) + "\n";
}

}  // namespace encore::model
