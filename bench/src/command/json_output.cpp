// SPDX-License-Identifier: Apache-2.0
#include "json_output.hpp"

#include <encore/model/files/graph_rules.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

namespace encore::command {

using Json = nlohmann::ordered_json;

void print_json(const Json& object, Console& console) {
  console.line(object.dump(2, ' ', false, Json::error_handler_t::replace));
}

Json refusal_json(std::string_view sentence) {
  Json json{{"sentence", std::string(sentence)}, {"rule", nullptr}};
  const std::string_view id = sentence.substr(0, sentence.find(": "));
  const auto rules = model::graph_rules();
  const auto rule = std::ranges::find(rules, id, &model::Rule::id);
  if (rule == rules.end()) return json;
  json["rule"] = rule->id;
  json["reason"] = rule->reason;
  json["change"] = rule->change;
  return json;
}

Json memory_json(const model::MemoryForecast& forecast) {
  Json by_use = Json::object();
  for (std::size_t use = 0; use < model::memory_uses; ++use)
    by_use[std::string(model::name_of(static_cast<model::MemoryUse>(use)))] = forecast.bytes[use];
  return {{"total_bytes", forecast.total()}, {"bytes", by_use}};
}

}  // namespace encore::command
