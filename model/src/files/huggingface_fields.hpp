// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "configuration_settings.hpp"

namespace encore::model {

/// The fields of a `config.json` and which of them have been understood.
class HuggingFaceFields {
 public:
  /// `fields` must outlive the object; `source` names where they stand.
  HuggingFaceFields(const nlohmann::json& fields, std::string source);

  const std::string& source() const { return source_; }

  /// The field's value, or nullptr if it is absent or null. It counts as understood.
  const nlohmann::json* take(std::string_view field);

  /// Sets `key` to the field's value. If the field is absent: throws, or does nothing.
  void require(std::string_view field, std::string_view key, Settings& settings);
  void use(std::string_view field, std::string_view key, Settings& settings);
  /// ... or sets it to the default of the field's class.
  void use_or(std::string_view field, std::string_view key, Value otherwise, Settings& settings);

  /// The field itself, if it is of that type. Throws for another one.
  std::string text(std::string_view field, std::string otherwise);
  bool truth(std::string_view field, bool otherwise);
  std::int64_t whole(std::string_view field, std::int64_t otherwise);
  std::vector<std::string> texts(std::string_view field);    ///< empty if it is absent
  std::vector<std::int64_t> wholes(std::string_view field);  ///< likewise

  /// Fields that change nothing about this family.
  template <class... Names>
  void ignore(Names... names) {
    (static_cast<void>(take(names)), ...);
  }

  /// Throws unless the field is absent or has the one value that this version computes.
  void expect(std::string_view field, const nlohmann::json& value);

  /// Throws for the first field that was not taken, unless it is known to leave the computation alone, or its
  /// value is null, false or empty.
  void refuse_rest() const;

  [[noreturn]] void refuse(std::string_view field, std::string_view what_is_allowed) const;

 private:
  const nlohmann::json& fields_;
  std::string source_;
  std::set<std::string, std::less<>> taken_;
};

/// A setting that a field implies.
void set(Settings& settings, std::string_view key, Value value);

}  // namespace encore::model
