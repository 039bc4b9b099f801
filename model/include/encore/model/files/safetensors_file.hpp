// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <encore/model/files/mapped_file.hpp>
#include <encore/model/files/stored_type.hpp>

namespace encore::model {

/// One tensor of a safetensors file: row-major, little-endian, valid as long as the file object lives.
/// The bytes may start at any address: copy them out instead of casting the pointer.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::f32;
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  std::span<const std::byte> bytes;

  std::int64_t elements() const noexcept;
};

/// The numbers of a tensor of any floating-point type, rounded to nearest; `file` is named in errors. Throws
/// InputFileError for a tensor of integers.
std::vector<float> float32_of(const StoredTensor& tensor, const std::filesystem::path& file);

/// A safetensors file, mapped and read as hostile input.
///
/// The constructor accepts a file only if: the header's length fits the file and is at most 100 MB; the
/// header is one JSON object in which no key occurs twice; every tensor has exactly dtype, shape and
/// data_offsets; its type is known; its shape times its element size does not overflow and equals its byte
/// range; and the byte ranges cover the data section without overlap, hole or rest. Anything else is an
/// InputFileError that names the file and the tensor or number. Format:
/// https://github.com/huggingface/safetensors#format
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return file_.path(); }

  /// All tensors in the order of their bytes in the file.
  std::span<const StoredTensor> tensors() const noexcept { return tensors_; }
  std::vector<std::string> names() const;

  bool contains(std::string_view name) const;
  /// Throws InputFileError if the file has no such tensor.
  const StoredTensor& tensor(std::string_view name) const;

  /// The strings under `__metadata__`; empty if there are none.
  const std::map<std::string, std::string, std::less<>>& metadata() const noexcept { return metadata_; }
  /// Throws InputFileError if the file has no such entry.
  const std::string& metadata(std::string_view key) const;

  /// The values of a tensor in another type: from any floating-point type (rounded to nearest for float32),
  /// or from any integer or boolean type. Throws InputFileError if the tensor is missing or of the other
  /// kind, or a U64 value does not fit.
  std::vector<float> float32(std::string_view name) const;
  std::vector<double> float64(std::string_view name) const;
  std::vector<std::int64_t> int64(std::string_view name) const;

 private:
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace encore::model
