// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <string>
#include <string_view>

namespace encore::model {

/// The model that a Hugging Face `config.json` (model_type gpt2 or llama) describes; `source` names the file
/// or the metadata entry in errors. Fields that leave the computation alone are passed over; a field that
/// would change it in a way that this version does not compute, or that this version does not know, is
/// refused by name, unless its value is null, false, empty or what is computed anyway.
///
/// Throws InputFileError for what is not a JSON object, ConfigurationError for everything else.
ModelConfiguration read_huggingface_configuration(std::string_view json, std::string_view source);

/// A `config.json` for the model, which `transformers` loads; reading it gives the same model again. What has
/// no field there (dropout of the llama family) stands in an object `encore`. A model that `transformers`
/// would compute differently (interleaved rotary positions, biases of one kind without the other) gets the
/// model_type `encore_llama`, so that it refuses instead. `stored_type` is the type of the weights in the
/// checkpoint: fp32 or bf16.
std::string write_huggingface_configuration(const ModelConfiguration& model, Precision stored_type);

}  // namespace encore::model
