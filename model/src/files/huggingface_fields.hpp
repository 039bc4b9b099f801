// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "configuration_settings.hpp"

namespace encore::model {

/// The fields of a `config.json` and which of them have been understood.
class HuggingFaceFields {
 public:
  /// `fields` must outlive the object; `source` names where they stand.
  HuggingFaceFields(const nlohmann::json& fields, std::string source);

  /// The field's value, or nullptr if it is absent or null. It counts as understood.
  const nlohmann::json* take(std::string_view field);

  /// Sets `key` to the field's value. If the field is absent: throws, or does nothing.
  void require(std::string_view field, std::string_view key, Settings& settings);
  void use(std::string_view field, std::string_view key, Settings& settings);

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

}  // namespace encore::model
