// SPDX-License-Identifier: Apache-2.0
#include "safetensors_index.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/mapped_file.hpp>

#include <fmt/format.h>

#include <string_view>

#include "strict_json.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

/// A name that can lead nowhere but beside the index.
bool is_plain_name(std::string_view name) {
  const bool has_separator = name.find_first_of(std::string_view("/\\:\0", 4)) != std::string_view::npos;
  return !has_separator && !name.starts_with('.') && name.ends_with(".safetensors") && name.size() <= 255;
}

nlohmann::json read_object(const std::filesystem::path& path, const std::string& file) {
  constexpr std::size_t most_bytes = 100'000'000;  // as for a header of safetensors
  try {
    return parse_json_object(read_text_file(path, most_bytes));
  } catch (const JsonProblem& problem) {
    throw InputFileError(fmt::format("{} {}", file, problem.what()));
  }
}

}  // namespace

SafetensorsIndex read_safetensors_index(const std::filesystem::path& path) {
  const std::string file = path_in_quotes(path);
  const nlohmann::json object = read_object(path, file);
  const auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object() || map->empty())
    throw InputFileError(fmt::format("{} is no index of safetensors files: it has no weight_map", file));
  SafetensorsIndex index;
  for (const auto& [tensor, value] : map->items()) {
    if (!value.is_string() || !is_plain_name(value.get_ref<const std::string&>()))
      throw InputFileError(fmt::format("{} puts tensor {} into {}, which is no safetensors file beside it",
                                       file, in_quotes(tensor), printable(value.dump(-1, ' ', true))));
    index.file_of.emplace(tensor, value.get<std::string>());
  }
  const auto metadata = object.find("metadata");
  if (metadata == object.end() || metadata->is_null()) return index;
  if (!metadata->is_object()) throw InputFileError(fmt::format("{} has metadata that is no object", file));
  for (const auto& [key, value] : metadata->items()) {
    if (value.is_string()) index.metadata.emplace(key, value.get<std::string>());
    if (key != "total_size") continue;
    if (!value.is_number()) throw InputFileError(fmt::format("{} has a total_size that is no number", file));
    index.total_size = value.get<double>();
  }
  return index;
}

}  // namespace encore::model
