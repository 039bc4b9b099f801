// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>
#include <filesystem>

namespace encore::model {

/// The model that a checkpoint holds: a safetensors file, an index of shards, or a Hugging Face folder (see
/// SafetensorsFiles). From its `config` metadata, or the `config.json` beside it, both with Hugging Face fields. Throws InputFileError when there is neither or it cannot be read, ConfigurationError when
/// it describes a model that this version does not have.
ModelConfiguration read_model_configuration(const std::filesystem::path& path);

/// Writes weights under their Hugging Face names, and what an exact resume needs: moments, master weights, random
/// positions and the number of steps, with the model's Hugging Face configuration as metadata. Into one safetensors
/// file, written beside and renamed; or, if `path` is a folder, ends with a slash, or `shard_bytes` is not 0, into a
/// Hugging Face folder: config.json, and model.safetensors or shards of at most so many bytes with their index. Throws
/// OutputFileError; an older checkpoint of that name then stays as it was.
///
/// Ranks that train together call it together. The first writes, and gets what the others have; the file is the one that a
/// single rank would write, and every layout of ranks can load it. Where the first cannot write, or a rank ends before
/// all is written, all ranks throw and no file is left.
void save_checkpoint(const std::filesystem::path& path, Trainer& trainer, std::uint64_t shard_bytes = 0);

/// Finds out before the first step, and not after the last, that save_checkpoint would throw; makes the folder, if it is
/// to be one. For the rank that writes.
void require_savable(const std::filesystem::path& path, const ModelConfiguration& model,
                     std::uint64_t shard_bytes = 0);

struct LoadedCheckpoint {
  std::int64_t steps_done = 0;
  bool resumes = false;  ///< training state was there; otherwise weights only, and training starts at step 1
};

/// Loads a checkpoint of save_checkpoint, or Hugging Face weights (F64, F32, F16 or BF16), from what
/// read_model_configuration takes. Ranks that train together call it together, and each reads its part. Throws InputFileError naming the tensor that is missing, has another shape, or does
/// not belong to the model.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& path, Trainer& trainer);

}  // namespace encore::model
