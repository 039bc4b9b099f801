// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/safetensors_files.hpp>

#include <encore/backend/error.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <system_error>

#include "safetensors_index.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

constexpr std::size_t most_files = 10000;

bool is_present(const std::filesystem::path& file) {
  std::error_code problem;
  const bool present = std::filesystem::exists(file, problem);
  if (problem)
    throw InputFileError(fmt::format("cannot read {}: {}", path_in_quotes(file), problem.message()));
  return present;
}

std::filesystem::path weights_in(const std::filesystem::path& folder) {
  const std::filesystem::path whole = folder / whole_weights_name, index = folder / weights_index_name;
  const bool has_whole = is_present(whole), has_index = is_present(index);
  if (has_whole && has_index)
    throw InputFileError(fmt::format("{} holds both {} and {}: name the one to read", path_in_quotes(folder),
                                     whole_weights_name, weights_index_name));
  if (!has_whole && !has_index)
    throw InputFileError(fmt::format("{} holds neither {} nor {}", path_in_quotes(folder), whole_weights_name,
                                     weights_index_name));
  return has_whole ? whole : index;
}

bool is_index(const std::filesystem::path& path) { return path.native().ends_with(".index.json"); }

}  // namespace

SafetensorsFiles::SafetensorsFiles(const std::filesystem::path& path) {
  std::error_code ignored;
  path_ = std::filesystem::is_directory(path, ignored) ? weights_in(path) : path;
  if (is_index(path_)) {
    read_index();
    return;
  }
  files_.emplace_back(path_);
  metadata_ = files_.front().metadata();
  for (const StoredTensor& tensor : files_.front().tensors()) file_of_.emplace(tensor.name, 0);
}

void SafetensorsFiles::read_index() {
  const std::string file = path_in_quotes(path_);
  SafetensorsIndex index = read_safetensors_index(path_);
  std::map<std::string_view, std::size_t> places;
  for (const auto& [tensor, name] : index.file_of) places.emplace(name, 0);
  if (places.size() > most_files)
    throw InputFileError(
        fmt::format("{} names {} files, more than the {} allowed", file, places.size(), most_files));
  double bytes = 0;
  for (auto& [name, place] : places) {
    place = files_.size();
    files_.emplace_back(path_.parent_path() / name);
    for (const StoredTensor& tensor : files_.back().tensors()) {
      const auto found = index.file_of.find(tensor.name);
      if (found == index.file_of.end())
        throw InputFileError(fmt::format("{} does not name tensor {}, which {} holds", file,
                                         in_quotes(tensor.name), path_in_quotes(files_.back().path())));
      if (found->second != name)
        throw InputFileError(fmt::format("{} puts tensor {} into {}, but {} holds one of that name too", file,
                                         in_quotes(tensor.name), in_quotes(found->second),
                                         path_in_quotes(files_.back().path())));
      bytes += static_cast<double>(tensor.bytes.size());
    }
  }
  for (const auto& [tensor, name] : index.file_of) {
    const std::size_t place = places.at(name);
    if (!files_[place].contains(tensor))
      throw InputFileError(fmt::format("{} puts tensor {} into {}, which does not hold it", file,
                                       in_quotes(tensor), path_in_quotes(files_[place].path())));
    file_of_.emplace(tensor, place);
  }
  if (index.total_size && *index.total_size != bytes)
    throw InputFileError(fmt::format("{} announces a total_size of {:.0f} bytes, but its files hold {:.0f}",
                                     file, *index.total_size, bytes));
  metadata_ = std::move(index.metadata);
}

std::vector<std::string> SafetensorsFiles::names() const {
  std::vector<std::string> result;
  for (const SafetensorsFile& file : files_)
    for (const StoredTensor& tensor : file.tensors()) result.push_back(tensor.name);
  return result;
}

bool SafetensorsFiles::contains(std::string_view name) const { return file_of_.contains(name); }

const SafetensorsFile& SafetensorsFiles::file_of(std::string_view name) const {
  if (const auto found = file_of_.find(name); found != file_of_.end()) return files_[found->second];
  std::vector<std::string_view> known;
  for (const auto& [tensor, place] : file_of_) known.push_back(tensor);
  throw InputFileError(fmt::format("{} has no tensor {}{}", path_in_quotes(path_), in_quotes(name),
                                   did_you_mean(name, known)));
}

const StoredTensor& SafetensorsFiles::tensor(std::string_view name) const {
  return file_of(name).tensor(name);
}

std::vector<float> SafetensorsFiles::float32(std::string_view name) const {
  return file_of(name).float32(name);
}

const std::string& SafetensorsFiles::metadata(std::string_view key) const {
  if (const auto found = metadata_.find(key); found != metadata_.end()) return found->second;
  throw InputFileError(fmt::format("{} has no metadata entry {}", path_in_quotes(path_), in_quotes(key)));
}

}  // namespace encore::model
