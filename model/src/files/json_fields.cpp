// SPDX-License-Identifier: Apache-2.0
#include "json_fields.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text.hpp"

namespace encore::model {

JsonFields::JsonFields(const nlohmann::json& value, std::string path, const std::string& file)
    : value_(value), path_(std::move(path)), file_(file) {
  if (!value_.is_object())
    throw InputFileError(
        fmt::format("{}{} is no JSON object", path_.empty() ? "" : printable(path_) + " of ", file_));
}

std::string JsonFields::path_of(const std::string& field) const {
  return printable(path_.empty() ? field : field.empty() ? path_ : path_ + "." + field);
}

std::string JsonFields::where(const std::string& field) const {
  return fmt::format("{} of {}", path_of(field), file_);
}

void JsonFields::malformed(const std::string& field, std::string_view what) const {
  throw InputFileError(fmt::format("{} {}", where(field), what));
}

void JsonFields::unsupported(const std::string& field, std::string_view what) const {
  throw ConfigurationError(fmt::format("{} is {}, which this version does not compute", where(field), what));
}

const nlohmann::json* JsonFields::find(const std::string& field) const {
  const auto found = value_.find(field);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& JsonFields::required(const std::string& field) const {
  const nlohmann::json* const found = find(field);
  if (found == nullptr) malformed(field, "is missing");
  return *found;
}

JsonFields JsonFields::object(const std::string& field) const {
  return {required(field), path_.empty() ? field : path_ + "." + field, file_};
}

void JsonFields::each_object(const std::string& field,
                             const std::function<void(const JsonFields&)>& visit) const {
  const nlohmann::json& list = required(field);
  if (!list.is_array()) malformed(field, "is no list");
  for (std::size_t i = 0; i < list.size(); ++i)
    visit(JsonFields(list[i], fmt::format("{}{}{}[{}]", path_, path_.empty() ? "" : ".", field, i), file_));
}

std::string JsonFields::text(const std::string& field) const {
  const nlohmann::json& value = required(field);
  if (!value.is_string()) malformed(field, "is no string");
  return value.get<std::string>();
}

std::string JsonFields::text_or(const std::string& field, std::string otherwise) const {
  return find(field) == nullptr ? std::move(otherwise) : text(field);
}

bool JsonFields::flag_or(const std::string& field, bool otherwise) const {
  const nlohmann::json* const value = find(field);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) malformed(field, "is neither true nor false");
  return value->get<bool>();
}

std::int64_t JsonFields::whole_number(const std::string& field, std::int64_t least, std::int64_t most) const {
  const nlohmann::json& value = required(field);
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)) &&
      value.get<std::int64_t>() >= least && value.get<std::int64_t>() <= most;
  if (!fits) malformed(field, fmt::format("is no whole number from {} to {}", least, most));
  return value.get<std::int64_t>();
}

void JsonFields::allow(std::initializer_list<std::string_view> fields) const {
  for (const auto& [name, value] : value_.items()) {
    const bool says_nothing = value.is_null() || value == false || value == "";
    if (!says_nothing && std::ranges::find(fields, name) == fields.end())
      throw ConfigurationError(fmt::format("{} is a field that this version does not know", where(name)));
  }
}

}  // namespace encore::model
