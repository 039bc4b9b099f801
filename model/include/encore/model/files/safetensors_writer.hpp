// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <encore/model/files/atomic_file.hpp>
#include <encore/model/files/stored_type.hpp>

namespace encore::model {

/// Writes a safetensors file without holding more than one piece of it in memory:
///
///   SafetensorsWriter writer("model.safetensors");
///   writer.add_metadata("format", "pt");
///   writer.add("w", StoredType::f32, {2, 3});        // all descriptions first
///   writer.write("w", bytes);                        // then the data: tensors in any order, each in pieces
///   writer.commit();                                 // now the file stands, whole and on the disk
///
/// Until `commit` returns an older file of that name is untouched; see AtomicFile for how, and for what
/// happens when the disk is full. The header is padded with spaces to a multiple of 8 bytes and the tensors
/// are laid out from the widest element type to the narrowest, so that every tensor is aligned.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(const std::filesystem::path& path);

  /// Both throw InternalError for a name that was already given, or after the first `write`.
  void add_metadata(std::string key, std::string value);
  void add(std::string name, StoredType type, std::vector<std::int64_t> shape);

  /// Appends bytes to a tensor. Throws OutputFileError if they cannot be written, InternalError for an
  /// unknown tensor or more bytes than it has.
  void write(std::string_view name, std::span<const std::byte> bytes);

  /// Throws InternalError if a tensor is not complete.
  void commit();

 private:
  struct Tensor {
    std::string name;
    StoredType type;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes;
    std::uint64_t begin;    ///< in the data section
    std::uint64_t written;  ///< bytes
  };

  void lay_out();
  std::string header() const;

  AtomicFile file_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::optional<std::uint64_t> data_begin_;  ///< in the file; set once the header is written
};

}  // namespace encore::model
