// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace encore::model {

/// How far a model is from a reference file, which holds weights, tokens, logits, gradients and the losses of AdamW
/// steps. Each number is the norm of the difference over the norm of the reference.
struct GoldenErrors {
  double logits_error = 0;
  double loss_error = 0;                         ///< of the first step
  std::map<std::string, double> gradient_error;  ///< of the first step, by Hugging Face name
  std::vector<double> adamw_loss_error;          ///< before each step
  std::map<std::string, double> final_error;     ///< of parameters after the last step, by Hugging Face name
  /// Tokens that went to each expert in the first step, as Trainer::tokens_of_experts() tells them.
  std::vector<std::int32_t> tokens_of_experts;

  double largest() const;
};

/// What a reference file determines: its model, batch, AdamW without clipping or schedule, and weight decay on every
/// parameter alike. Backend, precision and capture stay as in `wishes`.
Configuration golden_configuration(const std::filesystem::path& file, const Configuration& wishes);

/// Loads the file's weights and repeats its computation. Throws InputFileError naming what the file lacks.
GoldenErrors evaluate_golden(const std::filesystem::path& file, const Configuration& configuration);

}  // namespace encore::model
