// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace encore::model {

/// The JSON library's own words about what is wrong, without its prefix and fit for one line.
std::string json_error_text(const nlohmann::json::exception& error);

/// What `parse_json_object` found wrong, as a clause to put after the name of the source.
class JsonProblem : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Parses a JSON object; no key may occur twice in one object, and nesting is bounded. Python writes NaN,
/// Infinity and -Infinity, which JSON does not have: they are read as the strings of the same name, so that
/// whoever needs a number there refuses them by name. Throws JsonProblem.
nlohmann::json parse_json_object(std::string_view text);

}  // namespace encore::model
