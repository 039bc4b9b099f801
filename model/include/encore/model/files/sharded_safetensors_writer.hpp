// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <encore/model/files/atomic_file.hpp>
#include <encore/model/files/safetensors_writer.hpp>
#include <encore/model/files/stored_type.hpp>

namespace encore::model {

/// Writes a checkpoint as shards of at most `most_bytes` of tensor data each (a larger tensor has one for itself) and
/// a `model.safetensors.index.json`, with the calls of SafetensorsWriter.
///
/// The shards get names that the folder does not hold yet, `model-step-<step>-00001-of-00003.safetensors`, and the
/// index is replaced last, in one step: until `commit` returns, and whenever the process ends before, the folder holds
/// the checkpoint that it held. Shards of earlier checkpoints are removed afterwards. The index stays locked meanwhile:
/// a second run with the same folder gets an error.
class ShardedSafetensorsWriter {
 public:
  /// Throws OutputFileError if the folder is none, cannot be written, or holds a checkpoint of another kind:
  /// a model.safetensors, or an index that names shards which this class did not write.
  ShardedSafetensorsWriter(std::filesystem::path folder, std::int64_t step, std::uint64_t most_bytes);

  void add_metadata(std::string key, std::string value);
  void add(std::string name, StoredType type, std::vector<std::int64_t> shape);
  /// A shard is opened with its first bytes and closed with its last: tensors written in the order in which they
  /// were added keep one open at a time.
  void write(std::string_view name, std::span<const std::byte> bytes);
  void commit();

 private:
  struct Tensor {
    std::string name;
    StoredType type;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes;
    std::size_t shard;
  };
  struct Shard {
    std::uint64_t bytes = 0;
    std::uint64_t written = 0;
    std::unique_ptr<SafetensorsWriter> writer;
    bool closed = false;
  };

  void distribute();
  void open(std::size_t shard);
  void close(std::size_t shard);
  std::string file_name(std::size_t shard) const;
  std::string index_text() const;
  std::vector<std::filesystem::path> earlier_shards() const;

  std::filesystem::path folder_;
  std::int64_t step_;
  std::uint64_t most_bytes_;
  AtomicFile index_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> place_of_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::vector<Shard> shards_;  ///< empty until the first write
  std::string attempt_;        ///< what tells names from those that are taken
};

}  // namespace encore::model
