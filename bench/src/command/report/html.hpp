// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace encore::command {

/// The text as content or attribute value in HTML: nothing of it is markup. What is no UTF-8, and control characters,
/// become U+FFFD.
std::string escaped(std::string_view text);

/// The object for a script element of type application/json: ASCII, without any character that ends one.
std::string script_json(const nlohmann::ordered_json& object);

/// `<data value="1.25e-03">0.0013</data>`: the number in full for programs, and `shown` for people.
std::string data_element(double value, std::string_view shown, std::string_view name = {});

/// Few digits for a person: `0.0013`, `1.34`, `17.9`, `1234`.
std::string number_text(double value);
/// `1,234,567`.
std::string grouped_text(double value);

}  // namespace encore::command
