// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "configuration_table.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

bool in_range(const Range& range, long double value) {
  const bool low_enough = range.maximum_excluded ? value < range.maximum : value <= range.maximum;
  const bool high_enough = range.minimum_excluded ? value > range.minimum : value >= range.minimum;
  return low_enough && high_enough;  // false for NaN
}

/// `model.layers = 3 (--set)`; without a source, only key and value.
std::string shown_setting(const Key& key, std::string_view value, std::string_view source) {
  return source.empty() ? fmt::format("{} = {}", key.name, value)
                        : fmt::format("{} = {} ({})", key.name, value, source);
}

[[noreturn]] void refuse(const Key& key, std::string_view value, std::string_view source) {
  throw ConfigurationError(
      fmt::format("{} must be {}", shown_setting(key, value, source), allowed_values(key)));
}

/// A value of the right type that is not allowed.
[[noreturn]] void refuse_value(const Key& key, std::string_view value, std::string_view source) {
  if (key.refusal) model::refuse(*key.refusal, shown_setting(key, value, source));
  refuse(key, value, source);
}

bool holds(std::span<const std::string_view> options, std::string_view name) {
  return std::ranges::find(options, name) != options.end();
}

void check_option(const Key& key, const std::string& name, std::string_view source) {
  if (holds(key.options, name)) return;
  if (key.refusal)
    model::refuse(*key.refusal, shown_setting(key, in_quotes(name), source), did_you_mean(name, key.options));
  refuse(key, in_quotes(name), source);
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> bytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    std::int64_t bytes;
  };
  constexpr std::array<Unit, 10> units = {{{"", 1},
                                           {"B", 1},
                                           {"kB", 1'000},
                                           {"MB", 1'000'000},
                                           {"GB", 1'000'000'000},
                                           {"TB", 1'000'000'000'000},
                                           {"KiB", 1LL << 10},
                                           {"MiB", 1LL << 20},
                                           {"GiB", 1LL << 30},
                                           {"TiB", 1LL << 40}}};
  const std::size_t digits = std::min(text.find_first_not_of("-0123456789"), text.size());
  const auto count = number<std::int64_t>(text.substr(0, digits));
  std::string_view name = text.substr(digits);
  if (name.starts_with(' ')) name.remove_prefix(1);
  const auto unit = std::ranges::find(units, name, &Unit::name);
  std::int64_t product = 0;
  if (!count || unit == units.end() || __builtin_mul_overflow(*count, unit->bytes, &product))
    return std::nullopt;
  return product;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

std::optional<Value> numbers(std::string_view text) {
  std::vector<std::int64_t> list;
  for (const std::string& part : split(text)) {
    const auto value = number<std::int64_t>(part);
    if (!value) return std::nullopt;
    list.push_back(*value);
  }
  return list;
}

/// The text as a value of the key's type; none if it is not of that type.
std::optional<Value> typed(const Key& key, std::string_view text) {
  switch (key.kind) {
    case KeyKind::truth:
      if (text == "true") return true;
      if (text == "false") return false;
      return std::nullopt;
    case KeyKind::whole: return number<std::int64_t>(text);
    case KeyKind::bytes: return bytes(text);
    case KeyKind::real: return number<double>(text);
    case KeyKind::choice:
    case KeyKind::letters:
    case KeyKind::path: return std::string(text);
    case KeyKind::choices: return split(text);
    case KeyKind::wholes: return numbers(text);
  }
  return std::nullopt;
}

std::optional<Value> typed(const Key& key, const nlohmann::json& json) {
  switch (key.kind) {
    case KeyKind::truth:
      if (json.is_boolean()) return json.get<bool>();
      return std::nullopt;
    case KeyKind::bytes:
      if (json.is_string()) return bytes(json.get_ref<const std::string&>());
      [[fallthrough]];
    case KeyKind::whole:
      // Beyond 64 bits the JSON parser has made the number a floating-point one.
      if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::uint64_t{INT64_MAX})
        return std::nullopt;
      if (json.is_number_integer()) return json.get<std::int64_t>();
      return std::nullopt;
    case KeyKind::real:
      if (json.is_number()) return json.get<double>();
      return std::nullopt;
    case KeyKind::choice:
    case KeyKind::letters:
    case KeyKind::path:
      if (json.is_string()) return json.get<std::string>();
      return std::nullopt;
    case KeyKind::choices: {
      if (json.is_string()) return split(json.get_ref<const std::string&>());
      const auto is_text = [](const nlohmann::json& item) { return item.is_string(); };
      if (json.is_array() && std::ranges::all_of(json, is_text)) return json.get<std::vector<std::string>>();
      return std::nullopt;
    }
    case KeyKind::wholes: {
      if (json.is_string()) return numbers(json.get_ref<const std::string&>());
      const auto fits = [](const nlohmann::json& item) {
        return item.is_number_integer() &&
               !(item.is_number_unsigned() && item.get<std::uint64_t>() > std::uint64_t{INT64_MAX});
      };
      if (json.is_array() && std::ranges::all_of(json, fits)) return json.get<std::vector<std::int64_t>>();
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string allowed_values(const Key& key) {
  const Range& range = key.range;
  switch (key.kind) {
    case KeyKind::truth: return "true or false";
    case KeyKind::whole:
      if (range.minimum == range.maximum) return fmt::format("{:.0f} in this version", range.minimum);
      return fmt::format("a whole number from {:.0f} to {:.0f}", range.minimum, range.maximum);
    case KeyKind::bytes:
      return fmt::format("a number of bytes from {:.0f} to {:.0f}, such as 20GiB", range.minimum,
                         range.maximum);
    case KeyKind::real:
      if (range.minimum_excluded)
        return fmt::format("a number above {} and at most {}", range.minimum, range.maximum);
      if (range.maximum_excluded)
        return fmt::format("a number from {} to below {}", range.minimum, range.maximum);
      return fmt::format("a number from {} to {}", range.minimum, range.maximum);
    case KeyKind::choice: return fmt::format("one of {}", fmt::join(key.options, ", "));
    case KeyKind::letters:
      return fmt::format("at most {:.0f} of the letters {}", range.maximum, fmt::join(key.options, " "));
    case KeyKind::choices:
      return fmt::format("a list of {}, each at most once", fmt::join(key.options, ", "));
    case KeyKind::path: return fmt::format("a path of at most {:.0f} bytes, or empty", range.maximum);
    case KeyKind::wholes:
      return fmt::format("a list of whole numbers from {:.0f} to {:.0f}, each at most once", range.minimum,
                         range.maximum);
  }
  return {};
}

std::string value_text(const Value& value) {
  struct Text {
    std::string operator()(bool truth) const { return truth ? "true" : "false"; }
    std::string operator()(std::int64_t whole) const { return fmt::format("{}", whole); }
    std::string operator()(double real) const { return fmt::format("{}", real); }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<std::string>& list) const {
      return fmt::format("{}", fmt::join(list, ","));
    }
    std::string operator()(const std::vector<std::int64_t>& list) const {
      return fmt::format("{}", fmt::join(list, ","));
    }
  };
  return std::visit(Text{}, value);
}

void check_value(const Key& key, const Value& value, std::string_view source) {
  switch (key.kind) {
    case KeyKind::truth: return;
    case KeyKind::whole:
    case KeyKind::bytes:
      // Extended precision holds every 64-bit number exactly.
      if (!in_range(key.range, static_cast<long double>(std::get<std::int64_t>(value))))
        refuse_value(key, value_text(value), source);
      return;
    case KeyKind::real:
      if (!in_range(key.range, std::get<double>(value))) refuse_value(key, value_text(value), source);
      return;
    case KeyKind::choice: check_option(key, std::get<std::string>(value), source); return;
    case KeyKind::letters: {
      const auto& text = std::get<std::string>(value);
      const auto is_option = [&](const char& letter) { return holds(key.options, {&letter, 1}); };
      if (static_cast<double>(text.size()) > key.range.maximum || !std::ranges::all_of(text, is_option))
        refuse(key, in_quotes(text), source);
      return;
    }
    case KeyKind::path: {
      const auto& path = std::get<std::string>(value);
      const bool plain = std::ranges::none_of(path, [](char c) { return (c >= 0 && c < 32) || c == 127; });
      if (!plain || static_cast<double>(path.size()) > key.range.maximum)
        refuse(key, in_quotes(path), source);
      return;
    }
    case KeyKind::choices: {
      const auto& names = std::get<std::vector<std::string>>(value);
      for (const std::string& name : names) {
        check_option(key, name, source);
        if (std::ranges::count(names, name) == 1) continue;
        if (key.repetition)
          model::refuse(*key.repetition, shown_setting(key, in_quotes(value_text(value)), source));
        refuse(key, in_quotes(value_text(value)), source);
      }
      return;
    }
    case KeyKind::wholes: {
      std::vector<std::int64_t> list = std::get<std::vector<std::int64_t>>(value);
      std::ranges::sort(list);
      const bool twice = std::ranges::adjacent_find(list) != list.end();
      const auto fits = [&](std::int64_t number) {
        return in_range(key.range, static_cast<long double>(number));
      };
      if (twice || !std::ranges::all_of(list, fits)) refuse(key, in_quotes(value_text(value)), source);
      return;
    }
  }
}

Value parse_value(const Key& key, std::string_view text, std::string_view source) {
  std::optional<Value> value = typed(key, text);
  if (!value) refuse(key, in_quotes(text), source);
  check_value(key, *value, source);
  return *std::move(value);
}

Value parse_value(const Key& key, const nlohmann::json& json, std::string_view source) {
  std::optional<Value> value = typed(key, json);
  if (!value) refuse(key, printable(json.dump()), source);
  check_value(key, *value, source);
  return *std::move(value);
}

}  // namespace encore::model
