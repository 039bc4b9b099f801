// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>
#include <filesystem>

namespace encore::model {

/// The model that a safetensors file holds: from its `config` metadata, or the `config.json` beside it, both with
/// Hugging Face fields. Throws InputFileError when there is neither or it cannot be read, ConfigurationError when
/// it describes a model that this version does not have.
ModelConfiguration read_model_configuration(const std::filesystem::path& file);

/// Writes weights under their Hugging Face names, and what an exact resume needs: moments, master weights, random
/// positions and the number of steps. One safetensors file, written beside and renamed, with the model's Hugging
/// Face configuration as metadata. Throws OutputFileError; an older file of that name then stays as it was.
void save_checkpoint(const std::filesystem::path& file, Trainer& trainer);

struct LoadedCheckpoint {
  std::int64_t steps_done = 0;
  bool resumes = false;  ///< training state was there; otherwise weights only, and training starts at step 1
};

/// Loads a checkpoint of save_checkpoint, or Hugging Face weights (F64, F32, F16 or BF16). Throws InputFileError
/// naming the tensor that is missing, has another shape, or does not belong to the model.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& file, Trainer& trainer);

}  // namespace encore::model
