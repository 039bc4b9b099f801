// SPDX-License-Identifier: Apache-2.0
#include "configuration_table.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "configuration_keys.hpp"
#include "text.hpp"

namespace encore::model {

std::span<const Key> key_table() {
  static const std::vector<Key> table = [] {
    std::vector<Key> keys;
    for (const std::vector<Key>& section : {model_keys(), train_keys(), other_keys()})
      std::ranges::copy(section, std::back_inserter(keys));
    return keys;
  }();
  return table;
}

const Key* find_key(std::string_view name) {
  const auto table = key_table();
  const auto found = std::ranges::find(table, name, &Key::name);
  return found == table.end() ? nullptr : &*found;
}

bool has_meaning(const Key& key, const ModelConfiguration& model) {
  return key.subject == nullptr || key.subject->concerns(model);
}

Value neutral_value(const Key& key) { return key.read(Configuration{}); }

void throw_unknown_key(std::string_view name, std::string_view source) {
  std::vector<std::string_view> names;
  for (const Key& key : key_table()) names.push_back(key.name);
  throw ConfigurationError(
      fmt::format("unknown configuration key {} ({}){}", in_quotes(name), source, did_you_mean(name, names)));
}

}  // namespace encore::model
