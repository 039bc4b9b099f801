// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace encore::model {

/// A `model.safetensors.index.json`.
struct SafetensorsIndex {
  std::map<std::string, std::string, std::less<>> file_of;   ///< by the tensor's name; a plain file name
  std::map<std::string, std::string, std::less<>> metadata;  ///< its strings
  std::optional<double> total_size;  ///< bytes; some tools write it with a decimal point
};

/// Throws InputFileError for what is no index, or names a file that is not beside it.
SafetensorsIndex read_safetensors_index(const std::filesystem::path& path);

}  // namespace encore::model
