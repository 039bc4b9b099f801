// SPDX-License-Identifier: Apache-2.0
#include "json_output.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

namespace encore::command {

using Json = nlohmann::ordered_json;

void print_json(const Json& object, Console& console) {
  console.line(object.dump(2, ' ', false, Json::error_handler_t::replace));
}

Json refusal_json(std::string_view sentence) {
  Json json{{"rule", nullptr}, {"sentence", std::string(sentence)}};
  const std::size_t colon = sentence.find(": ");
  if (colon == std::string_view::npos) return json;
  const std::string_view id = sentence.substr(0, colon);
  const auto is_digit = [](char character) { return character >= '0' && character <= '9'; };
  const bool is_rule = id.size() > 2 && (id[0] == 'G' || id[0] == 'R') && id[1] == '-' &&
                       std::all_of(id.begin() + 2, id.end(), is_digit);
  if (is_rule) json["rule"] = std::string(id);
  return json;
}

Json memory_json(const model::MemoryForecast& forecast) {
  Json by_use = Json::object();
  for (std::size_t use = 0; use < model::memory_uses; ++use)
    by_use[std::string(model::name_of(static_cast<model::MemoryUse>(use)))] = forecast.bytes[use];
  return {{"total_bytes", forecast.total()}, {"bytes", by_use}};
}

}  // namespace encore::command
