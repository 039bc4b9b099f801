// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace encore::model {

/// A regular file mapped read-only into memory for the lifetime of the object.
///
/// The pages are the file's: a program that shortens the file while it is mapped makes later reads fail with
/// SIGBUS. Files written by this library are replaced by renaming, which never does that.
class MappedFile {
 public:
  /// Throws InputFileError if the file cannot be opened or is not a regular file.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

/// The whole file as text. Throws InputFileError if it cannot be read or holds more than `most_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace encore::model
