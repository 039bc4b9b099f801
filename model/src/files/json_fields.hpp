// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace encore::model {

/// The fields of one JSON object of a tokenizer.json. Errors name the field by its path, such as
/// `pre_tokenizer.pretokenizers[1].pattern of 'tokenizer.json'`.
class JsonFields {
 public:
  /// Throws InputFileError if `value` is no object.
  JsonFields(const nlohmann::json& value, std::string path, const std::string& file);

  /// Null where the field is absent or null.
  const nlohmann::json* find(const std::string& field) const;
  const nlohmann::json& required(const std::string& field) const;
  JsonFields object(const std::string& field) const;
  /// The objects of an array.
  void each_object(const std::string& field, const std::function<void(const JsonFields&)>& visit) const;

  std::string text(const std::string& field) const;
  std::string text_or(const std::string& field, std::string otherwise) const;
  bool flag_or(const std::string& field, bool otherwise) const;
  std::int64_t whole_number(const std::string& field, std::int64_t least, std::int64_t most) const;

  /// Throws ConfigurationError for a field that is none of those and is not null, false or an empty string.
  void allow(std::initializer_list<std::string_view> fields) const;

  std::string where(const std::string& field) const;
  const std::string& path() const { return path_; }
  const std::string& file() const { return file_; }
  const nlohmann::json& json() const { return value_; }

  /// InputFileError: `<field> of <file> <what>`.
  [[noreturn]] void malformed(const std::string& field, std::string_view what) const;
  /// ConfigurationError: `<field> of <file> is <what>, which this version does not compute`.
  [[noreturn]] void unsupported(const std::string& field, std::string_view what) const;

 private:
  std::string path_of(const std::string& field) const;

  const nlohmann::json& value_;
  std::string path_;
  const std::string& file_;
};

}  // namespace encore::model
