// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/safetensors_writer.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <encore/backend/error.hpp>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "text.hpp"

namespace encore::model {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path) : file_(path) {}

void SafetensorsWriter::add_metadata(std::string key, std::string value) {
  if (data_begin_)
    throw InternalError("metadata was added to a safetensors file after its header was written");
  if (metadata_.contains(key))
    throw InternalError(fmt::format("the metadata entry {} was added twice", in_quotes(key)));
  metadata_.emplace(std::move(key), std::move(value));
}

void SafetensorsWriter::add(std::string name, StoredType type, std::vector<std::int64_t> shape) {
  if (data_begin_)
    throw InternalError(fmt::format("tensor {} was added after the header was written", in_quotes(name)));
  if (name == "__metadata__" || index_.contains(name))
    throw InternalError(fmt::format("tensor {} was added twice", in_quotes(name)));
  std::uint64_t bytes = size_of(type);
  for (const std::int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes))
      throw InternalError(fmt::format("tensor {} has the impossible extent {}", in_quotes(name), extent));
  index_.emplace(name, tensors_.size());
  tensors_.push_back({.name = std::move(name),
                      .type = type,
                      .shape = std::move(shape),
                      .bytes = bytes,
                      .begin = 0,
                      .written = 0});
}

void SafetensorsWriter::lay_out() {
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [this](std::size_t left, std::size_t right) {
    return size_of(tensors_[left].type) > size_of(tensors_[right].type);
  });
  std::uint64_t begin = 0;
  for (const std::size_t i : order) {
    tensors_[i].begin = begin;
    begin += tensors_[i].bytes;
  }
  const std::string text = header();
  const std::uint64_t length = text.size();
  std::array<std::byte, sizeof(length)> prefix{};
  std::memcpy(prefix.data(), &length, sizeof(length));
  file_.write_at(0, prefix);
  file_.write_at(prefix.size(), std::as_bytes(std::span(text)));
  data_begin_ = prefix.size() + text.size();
}

std::string SafetensorsWriter::header() const {
  // Written piece by piece: an object that keeps its order looks every name up among all before it.
  std::string text = "{";
  const auto add = [&text](const std::string& name, const nlohmann::ordered_json& value) {
    if (text.size() > 1) text += ',';
    text += nlohmann::ordered_json(name).dump() + ':' + value.dump();
  };
  try {
    if (!metadata_.empty()) add("__metadata__", metadata_);
    for (const Tensor& tensor : tensors_)
      add(tensor.name, {{"dtype", name_of(tensor.type)},
                        {"shape", tensor.shape},
                        {"data_offsets", {tensor.begin, tensor.begin + tensor.bytes}}});
  } catch (const nlohmann::json::exception&) {
    throw InternalError(
        fmt::format("a name or metadata entry for {} is not valid UTF-8", path_in_quotes(file_.target())));
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (!data_begin_) lay_out();
  const auto found = index_.find(name);
  if (found == index_.end()) throw InternalError(fmt::format("tensor {} was never added", in_quotes(name)));
  Tensor& tensor = tensors_[found->second];
  if (bytes.size() > tensor.bytes - tensor.written)
    throw InternalError(fmt::format("tensor {} has {} bytes, but {} were written", in_quotes(name),
                                    tensor.bytes, tensor.written + bytes.size()));
  file_.write_at(*data_begin_ + tensor.begin + tensor.written, bytes);
  tensor.written += bytes.size();
}

void SafetensorsWriter::commit() {
  if (!data_begin_) lay_out();
  for (const Tensor& tensor : tensors_)
    if (tensor.written != tensor.bytes)
      throw InternalError(fmt::format("tensor {} has {} bytes, but only {} were written",
                                      in_quotes(tensor.name), tensor.bytes, tensor.written));
  file_.commit();
}

}  // namespace encore::model
