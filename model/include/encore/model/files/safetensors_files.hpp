// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <encore/model/files/safetensors_file.hpp>

namespace encore::model {

/// What a Hugging Face folder calls its weights: one file, or an index of the shards beside it.
inline constexpr std::string_view whole_weights_name = "model.safetensors";
inline constexpr std::string_view weights_index_name = "model.safetensors.index.json";

/// The tensors of a checkpoint, in one safetensors file or in several that an index names. All of them are mapped, and
/// read where a tensor is asked for.
///
/// An index is read as hostile input: it may name files beside it only, each tensor of `weight_map` must stand in its
/// file, each tensor of a file must stand in `weight_map` under that file, and `metadata.total_size`, if it is there,
/// must be the bytes of all tensors. Anything else is an InputFileError that names the tensor or the file.
class SafetensorsFiles {
 public:
  /// `path` is a safetensors file, an index (`*.index.json`), or a folder that holds either under its usual name.
  /// Throws InputFileError; for a folder also where both or none of them are there.
  explicit SafetensorsFiles(const std::filesystem::path& path);

  /// The safetensors file or the index.
  const std::filesystem::path& path() const noexcept { return path_; }
  std::size_t file_count() const noexcept { return files_.size(); }

  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;
  /// Throws InputFileError if there is no such tensor.
  const StoredTensor& tensor(std::string_view name) const;
  /// As SafetensorsFile::float32.
  std::vector<float> float32(std::string_view name) const;

  /// The file's metadata, or the strings of the index's.
  const std::map<std::string, std::string, std::less<>>& metadata() const noexcept { return metadata_; }
  /// Throws InputFileError if there is no such entry.
  const std::string& metadata(std::string_view key) const;

 private:
  void read_index();
  const SafetensorsFile& file_of(std::string_view name) const;

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;  ///< by the tensor's name
  std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace encore::model
