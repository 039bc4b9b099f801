// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/safetensors_file.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <encore/backend/error.hpp>
#include <encore/model/files/nearest_name.hpp>
#include <limits>
#include <utility>

#include "safetensors_header.hpp"
#include "text.hpp"

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace encore::model {
namespace {

constexpr std::uint64_t most_header_bytes = 100'000'000;  // as in the reference implementation
constexpr std::uint64_t length_bytes = sizeof(std::uint64_t);

struct Sections {
  std::string_view header;
  std::span<const std::byte> data;
};

Sections split(const MappedFile& file) {
  const std::string name = path_in_quotes(file.path());
  const auto bytes = file.bytes();
  if (bytes.size() < length_bytes)
    throw InputFileError(
        fmt::format("{} is not a safetensors file: it holds {} bytes, but its header's length alone takes {}",
                    name, bytes.size(), length_bytes));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > most_header_bytes)
    throw InputFileError(fmt::format(
        "{} is not a safetensors file: it announces a header of {} bytes, more than the {} allowed", name,
        length, most_header_bytes));
  if (length > bytes.size() - length_bytes)
    throw InputFileError(
        fmt::format("{} is truncated: it announces a header of {} bytes, but only {} bytes follow", name,
                    length, bytes.size() - length_bytes));
  const auto header = bytes.subspan(length_bytes, length);
  return {{reinterpret_cast<const char*>(header.data()), header.size()},
          bytes.subspan(length_bytes + length)};
}

/// The bytes that shape and type ask for.
std::uint64_t required_bytes(const TensorDescription& tensor, StoredType type, const std::string& file) {
  std::uint64_t total = size_of(type);
  for (const std::uint64_t extent : tensor.shape) {
    // Extents are kept signed: [2^63, 0] has no bytes, but its first extent would turn negative.
    const bool too_large = extent > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    if (too_large || __builtin_mul_overflow(total, extent, &total) ||
        total > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
      throw InputFileError(fmt::format("tensor {} of {} is too large: shape [{}] of {}",
                                       in_quotes(tensor.name), file, fmt::join(tensor.shape, ", "),
                                       tensor.type));
  }
  return total;
}

StoredTensor checked(TensorDescription& tensor, std::span<const std::byte> data, const std::string& file) {
  const auto type = stored_type(tensor.type);
  if (!type)
    throw InputFileError(fmt::format("tensor {} of {} has the type {}, which this version does not know",
                                     in_quotes(tensor.name), file, in_quotes(tensor.type)));
  const std::uint64_t begin = tensor.range[0], end = tensor.range[1];
  if (begin > end)
    throw InputFileError(fmt::format("tensor {} of {} ends at byte {}, before its begin {}",
                                     in_quotes(tensor.name), file, end, begin));
  if (end > data.size())
    throw InputFileError(
        fmt::format("{} is truncated: tensor {} ends at byte {} of the data, but there are only {}", file,
                    in_quotes(tensor.name), end, data.size()));
  const std::uint64_t required = required_bytes(tensor, *type, file);
  if (required != end - begin)
    throw InputFileError(fmt::format("tensor {} of {} has {} bytes, but shape [{}] of {} needs {}",
                                     in_quotes(tensor.name), file, end - begin, fmt::join(tensor.shape, ", "),
                                     tensor.type, required));
  return {.name = std::move(tensor.name),
          .type = *type,
          .shape = {tensor.shape.begin(), tensor.shape.end()},
          .bytes = data.subspan(begin, end - begin)};
}

void require_cover(std::span<const StoredTensor> tensors, std::span<const std::byte> data,
                   const std::string& file) {
  std::size_t covered = 0;
  std::string_view previous = "the header";
  for (const StoredTensor& tensor : tensors) {
    const auto begin = static_cast<std::size_t>(tensor.bytes.data() - data.data());
    if (begin < covered)
      throw InputFileError(fmt::format("tensors {} and {} of {} overlap at byte {} of the data",
                                       in_quotes(previous), in_quotes(tensor.name), file, begin));
    if (begin > covered)
      throw InputFileError(
          fmt::format("bytes {} to {} of the data of {}, before tensor {}, belong to no tensor", covered,
                      begin, file, in_quotes(tensor.name)));
    covered = begin + tensor.bytes.size();
    previous = tensor.name;
  }
  if (covered != data.size())
    throw InputFileError(
        fmt::format("the last {} bytes of {} belong to no tensor", data.size() - covered, file));
}

}  // namespace

std::int64_t StoredTensor::elements() const noexcept {
  return static_cast<std::int64_t>(bytes.size() / size_of(type));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string file = path_in_quotes(path);
  const Sections sections = split(file_);
  SafetensorsHeader header = parse_safetensors_header(sections.header, file);
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.tensors.size());
  for (TensorDescription& tensor : header.tensors) tensors_.push_back(checked(tensor, sections.data, file));
  std::ranges::sort(tensors_, [](const StoredTensor& left, const StoredTensor& right) {
    // Tensors without elements share their begin with a neighbour and must come before it.
    return std::pair(left.bytes.data(), left.bytes.size()) <
           std::pair(right.bytes.data(), right.bytes.size());
  });
  require_cover(tensors_, sections.data, file);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> result;
  result.reserve(tensors_.size());
  for (const StoredTensor& tensor : tensors_) result.push_back(tensor.name);
  return result;
}

bool SafetensorsFile::contains(std::string_view name) const { return index_.contains(name); }

const StoredTensor& SafetensorsFile::tensor(std::string_view name) const {
  if (const auto found = index_.find(name); found != index_.end()) return tensors_[found->second];
  const std::vector<std::string_view> known = [this] {
    std::vector<std::string_view> views;
    for (const StoredTensor& tensor : tensors_) views.push_back(tensor.name);
    return views;
  }();
  throw InputFileError(fmt::format("{} has no tensor {}{}", path_in_quotes(path()), in_quotes(name),
                                   did_you_mean(name, known)));
}

const std::string& SafetensorsFile::metadata(std::string_view key) const {
  if (const auto found = metadata_.find(key); found != metadata_.end()) return found->second;
  throw InputFileError(fmt::format("{} has no metadata entry {}", path_in_quotes(path()), in_quotes(key)));
}

}  // namespace encore::model
