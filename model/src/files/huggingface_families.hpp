// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <span>
#include <string_view>

#include "huggingface_fields.hpp"

// Fields and defaults: the configuration classes of transformers, versions 4 and 5.

namespace encore::model {

/// How the `config.json` of one family is read and written.
struct HuggingFaceFamily {
  std::string_view type;  ///< its model_type, and the family here
  std::string_view architecture;
  Settings (*read)(HuggingFaceFields& fields);
  /// Everything but model_type, architectures and what Hugging Face has no field for.
  nlohmann::ordered_json (*write)(const ModelConfiguration& model);
};

Settings read_gpt2(HuggingFaceFields& fields);
Settings read_llama(HuggingFaceFields& fields);
Settings read_qwen3(HuggingFaceFields& fields);
Settings read_qwen3_moe(HuggingFaceFields& fields);
Settings read_mixtral(HuggingFaceFields& fields);
Settings read_gpt_oss(HuggingFaceFields& fields);
Settings read_mamba2(HuggingFaceFields& fields);
Settings read_nemotron_h(HuggingFaceFields& fields);

nlohmann::ordered_json gpt2_fields(const ModelConfiguration& model);
nlohmann::ordered_json llama_fields(const ModelConfiguration& model);
nlohmann::ordered_json qwen3_fields(const ModelConfiguration& model);
nlohmann::ordered_json qwen3_moe_fields(const ModelConfiguration& model);
nlohmann::ordered_json mixtral_fields(const ModelConfiguration& model);
nlohmann::ordered_json gpt_oss_fields(const ModelConfiguration& model);
nlohmann::ordered_json mamba2_fields(const ModelConfiguration& model);
nlohmann::ordered_json nemotron_h_fields(const ModelConfiguration& model);

/// What every decoder with rotary attention has: sizes, heads, norm and rotary frequencies.
/// `rope_theta`: the class' own default.
Settings read_decoder(HuggingFaceFields& fields, double norm_epsilon, double rope_theta = 10000);
nlohmann::ordered_json decoder_fields(const ModelConfiguration& model);

/// The blocks of a layer that a family has in each layer, as `model.pattern`: `first` of layer i and then `second`.
/// Empty letters are left out.
void set_pattern(Settings& settings, const std::string& first, const std::string& second);

/// A letter for each layer.
std::string attention_letters(std::int64_t layers, bool windowed);

/// The letter at `place` of each layer's `of_layer` blocks.
std::string letters_at(const ModelConfiguration& model, std::size_t place, std::size_t of_layer);

}  // namespace encore::model
