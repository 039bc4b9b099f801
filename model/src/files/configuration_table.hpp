// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>
#include <encore/model/files/graph_rules.hpp>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace encore::model {

/// A checked value: `truth` holds a bool, `whole` and `bytes` an integer, `real` a double, `choice` a string,
/// `choices` a list of them, `wholes` a list of integers, `letters` and `path` a string.
using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>,
                           std::vector<std::int64_t>>;

enum class KeyKind { truth, whole, bytes, real, choice, choices, wholes, letters, path };

struct Range {
  double minimum = 0;
  double maximum = 0;
  bool minimum_excluded = false;
  bool maximum_excluded = false;
};

/// What some keys are about, and the models that have it. Of these, `family`, `layers` and `pattern` must be checked.
struct Subject {
  std::string_view name;  ///< as the end of "it is about ..."
  bool (*concerns)(const ModelConfiguration& model);
};

/// One configuration key. Parsing, checking, printing and the suggestion of a near name all come from these.
struct Key {
  std::string_view name = {};
  KeyKind kind = KeyKind::whole;
  Range range = {};
  std::span<const std::string_view> options = {};  ///< of `choice`, `choices` and `letters`
  std::string_view fallback = {};                  ///< what holds if nothing sets the key, in words
  std::string_view help = {};
  std::optional<GraphRule> refusal = {};     ///< of a value of the right type that is not allowed
  std::optional<GraphRule> repetition = {};  ///< of the same option twice, in `choices`
  const Subject* subject = nullptr;          ///< none: the key has a meaning for every model
  void (*assign)(Configuration&, const Value&) = nullptr;
  Value (*read)(const Configuration&) = nullptr;
};

/// All keys, section by section, in the order in which they are printed.
std::span<const Key> key_table();

/// The key of that name, or nullptr.
const Key* find_key(std::string_view name);

/// Whether the key is about something that the model has.
bool has_meaning(const Key& key, const ModelConfiguration& model);

/// The only value of a key for a model without what the key is about.
Value neutral_value(const Key& key);

/// Throws the ConfigurationError for a name that is no key; `source` says where it stood.
[[noreturn]] void throw_unknown_key(std::string_view name, std::string_view source);

/// What the key allows, as the end of "must be ...": `a whole number from 1 to 10000`.
std::string allowed_values(const Key& key);

/// Reads a value as a person types it or as JSON holds it, and checks it. Throws ConfigurationError.
Value parse_value(const Key& key, std::string_view text, std::string_view source);
Value parse_value(const Key& key, const nlohmann::json& json, std::string_view source);

/// Checks a value of the key's own type. Throws ConfigurationError; an empty source is left out of its
/// sentence.
void check_value(const Key& key, const Value& value, std::string_view source);

/// The value as a person would type it.
std::string value_text(const Value& value);

}  // namespace encore::model
