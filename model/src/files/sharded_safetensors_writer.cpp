// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/sharded_safetensors_writer.hpp>

#include <encore/backend/error.hpp>
#include <encore/model/files/safetensors_files.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <system_error>
#include <utility>

#include "safetensors_index.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

/// Whether `ShardedSafetensorsWriter::file_name` gives such names, or `.partial` stands behind one. Other files of
/// a similar name, such as the checkpoint model-step-100.safetensors of one file, are not this writer's to remove.
bool is_own_shard(std::string_view name) {
  static const std::regex shard(
      R"(model-step-[0-9]+(-[0-9]+)?-[0-9]{5,}-of-[0-9]{5,}\.safetensors(\.partial)?)");
  constexpr std::size_t longest_name = 255;  // of a file; the matching of a far longer one may not end well
  return name.size() <= longest_name && std::regex_match(name.begin(), name.end(), shard);
}

/// The folder, if its checkpoint may be replaced.
std::filesystem::path replaceable(std::filesystem::path folder) {
  std::error_code ignored;
  const std::string name = path_in_quotes(folder);
  if (!std::filesystem::is_directory(folder, ignored))
    throw OutputFileError(fmt::format("cannot write shards into {}: it is no folder", name));
  if (std::filesystem::exists(folder / whole_weights_name, ignored))
    throw OutputFileError(
        fmt::format("cannot write shards into {}: it holds a {}, which other programs would "
                    "read instead; name another folder",
                    name, whole_weights_name));
  const std::filesystem::path index = folder / weights_index_name;
  if (!std::filesystem::exists(index, ignored)) return folder;
  for (const auto& [tensor, file] : read_safetensors_index(index).file_of)
    if (!is_own_shard(file))
      throw OutputFileError(
          fmt::format("cannot write shards into {}: its index names {}, which is no shard of "
                      "an earlier run; name another folder",
                      name, in_quotes(file)));
  return folder;
}

}  // namespace

ShardedSafetensorsWriter::ShardedSafetensorsWriter(std::filesystem::path folder, std::int64_t step,
                                                   std::uint64_t most_bytes)
    : folder_(replaceable(std::move(folder))),
      step_(step),
      most_bytes_(most_bytes),
      index_(folder_ / weights_index_name) {}

void ShardedSafetensorsWriter::add_metadata(std::string key, std::string value) {
  if (!shards_.empty()) throw InternalError("metadata was added to shards after the first was written");
  if (key == "total_size" || !metadata_.emplace(key, std::move(value)).second)
    throw InternalError(fmt::format("the metadata entry {} was added twice", in_quotes(key)));
}

void ShardedSafetensorsWriter::add(std::string name, StoredType type, std::vector<std::int64_t> shape) {
  if (!shards_.empty())
    throw InternalError(
        fmt::format("tensor {} was added after the first shard was written", in_quotes(name)));
  if (!place_of_.emplace(name, tensors_.size()).second)
    throw InternalError(fmt::format("tensor {} was added twice", in_quotes(name)));
  std::uint64_t bytes = size_of(type);
  for (const std::int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes))
      throw InternalError(fmt::format("tensor {} has the impossible extent {}", in_quotes(name), extent));
  tensors_.push_back({std::move(name), type, std::move(shape), bytes, 0});
}

void ShardedSafetensorsWriter::distribute() {
  shards_.emplace_back();
  for (Tensor& tensor : tensors_) {
    const std::uint64_t present = shards_.back().bytes;
    if (present > 0 && tensor.bytes > most_bytes_ - std::min(present, most_bytes_)) shards_.emplace_back();
    tensor.shard = shards_.size() - 1;
    shards_.back().bytes += tensor.bytes;
  }
  // The step may have been saved before, by a run of which the folder's checkpoint still is.
  const auto is_taken = [this] {
    std::error_code ignored;
    for (std::size_t shard = 0; shard < shards_.size(); ++shard)
      if (std::filesystem::exists(folder_ / file_name(shard), ignored)) return true;
    return false;
  };
  for (int attempt = 2; is_taken(); ++attempt) attempt_ = fmt::format("-{}", attempt);
}

std::string ShardedSafetensorsWriter::file_name(std::size_t shard) const {
  return fmt::format("model-step-{}{}-{:05}-of-{:05}.safetensors", step_, attempt_, shard + 1,
                     shards_.size());
}

void ShardedSafetensorsWriter::open(std::size_t shard) {
  auto writer = std::make_unique<SafetensorsWriter>(folder_ / file_name(shard));
  writer->add_metadata("format", "pt");
  for (const Tensor& tensor : tensors_)
    if (tensor.shard == shard) writer->add(tensor.name, tensor.type, tensor.shape);
  shards_[shard].writer = std::move(writer);
}

void ShardedSafetensorsWriter::close(std::size_t shard) {
  if (!shards_[shard].writer) open(shard);
  shards_[shard].writer->commit();
  shards_[shard].writer.reset();
  shards_[shard].closed = true;
}

void ShardedSafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (shards_.empty()) distribute();
  if (bytes.empty()) return;
  const auto found = place_of_.find(name);
  if (found == place_of_.end())
    throw InternalError(fmt::format("tensor {} was never added", in_quotes(name)));
  const std::size_t place = tensors_[found->second].shard;
  Shard& shard = shards_[place];
  if (shard.closed)
    throw InternalError(fmt::format("tensor {} was written after it was complete", in_quotes(name)));
  if (!shard.writer) open(place);
  shard.writer->write(name, bytes);
  shard.written += bytes.size();
  if (shard.written == shard.bytes) close(place);
}

std::string ShardedSafetensorsWriter::index_text() const {
  nlohmann::ordered_json metadata = {{"total_size", std::uint64_t{0}}};
  std::uint64_t total = 0;
  nlohmann::json map = nlohmann::json::object();
  for (const Tensor& tensor : tensors_) {
    total += tensor.bytes;
    map[tensor.name] = file_name(tensor.shard);
  }
  metadata["total_size"] = total;
  for (const auto& [key, value] : metadata_) metadata[key] = value;
  try {
    return nlohmann::ordered_json{{"metadata", metadata}, {"weight_map", map}}.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw InternalError(
        fmt::format("a name or metadata entry for {} is not valid UTF-8", path_in_quotes(folder_)));
  }
}

void ShardedSafetensorsWriter::commit() {
  if (shards_.empty()) distribute();
  for (std::size_t shard = 0; shard < shards_.size(); ++shard)
    if (!shards_[shard].closed) close(shard);
  const std::string text = index_text();
  index_.write_at(0, std::as_bytes(std::span(text)));
  // Listed while the index is locked: what another run writes once it is not, stays.
  const std::vector<std::filesystem::path> earlier = earlier_shards();
  index_.commit();
  std::error_code ignored;
  for (const std::filesystem::path& file : earlier) std::filesystem::remove(file, ignored);
}

std::vector<std::filesystem::path> ShardedSafetensorsWriter::earlier_shards() const {
  std::set<std::string> present;
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) present.insert(file_name(shard));
  std::error_code ignored;
  std::vector<std::filesystem::path> earlier;
  // A range-for would throw where the folder cannot be read on; then shards stay, which harms nothing.
  for (std::filesystem::directory_iterator entry(folder_, ignored), end; entry != end;
       entry.increment(ignored))
    if (const std::string name = entry->path().filename().native();
        is_own_shard(name) && !present.contains(name))
      earlier.push_back(entry->path());
  return earlier;
}

}  // namespace encore::model
