// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "configuration_names.hpp"
#include "configuration_table.hpp"

// How a key is made from the member that it sets.

namespace encore::model {

/// The member that a chain of member pointers leads to.
template <auto... Path>
decltype(auto) member(auto& configuration) {
  return (configuration.*....*Path);
}

template <auto... Path>
using Member = std::remove_cvref_t<decltype(member<Path...>(std::declval<Configuration&>()))>;

/// Reads and writes a member whose type is the value's own.
template <auto... Path>
Key plain(Key key) {
  using Type = Member<Path...>;
  key.assign = [](Configuration& configuration, const Value& value) {
    member<Path...>(configuration) = std::get<Type>(value);
  };
  key.read = [](const Configuration& configuration) { return Value(member<Path...>(configuration)); };
  return key;
}

template <auto... Path>
Key choice(Key key) {
  using Type = Member<Path...>;
  key.kind = KeyKind::choice;
  key.options = names_of<Type>;
  key.assign = [](Configuration& configuration, const Value& value) {
    member<Path...>(configuration) = value_of<Type>(std::get<std::string>(value)).value();
  };
  key.read = [](const Configuration& configuration) {
    return Value(std::string(name_of(member<Path...>(configuration))));
  };
  return key;
}

template <auto... Path>
Key truth(std::string_view name, std::string_view fallback, std::string_view help) {
  return plain<Path...>({.name = name, .kind = KeyKind::truth, .fallback = fallback, .help = help});
}

template <auto... Path>
Key whole(std::string_view name, Range range, std::string_view fallback, std::string_view help) {
  return plain<Path...>(
      {.name = name, .kind = KeyKind::whole, .range = range, .fallback = fallback, .help = help});
}

template <auto... Path>
Key real(std::string_view name, Range range, std::string_view fallback, std::string_view help) {
  return plain<Path...>(
      {.name = name, .kind = KeyKind::real, .range = range, .fallback = fallback, .help = help});
}

template <auto... Path>
Key named(std::string_view name, std::string_view fallback, std::string_view help) {
  return choice<Path...>({.name = name, .fallback = fallback, .help = help});
}

/// A list of an enumeration's values, kept in the enumeration's order.
template <auto... Path>
Key list(Key key) {
  using Type = typename Member<Path...>::value_type;
  key.kind = KeyKind::choices;
  if (key.options.empty()) key.options = names_of<Type>;
  key.assign = [](Configuration& configuration, const Value& value) {
    auto& values = member<Path...>(configuration);
    values.clear();
    for (const std::string& name : std::get<std::vector<std::string>>(value))
      values.push_back(value_of<Type>(name).value());
    std::ranges::sort(values);
  };
  key.read = [](const Configuration& configuration) {
    std::vector<std::string> names;
    for (const Type value : member<Path...>(configuration)) names.emplace_back(name_of(value));
    return Value(std::move(names));
  };
  return key;
}

/// A key that has a meaning for some models alone.
inline Key about(const Subject& subject, Key key) {
  key.subject = &subject;
  return key;
}

constexpr Range from(double minimum, double maximum) { return {.minimum = minimum, .maximum = maximum}; }
constexpr Range below(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum, .maximum_excluded = true};
}
constexpr Range above(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum, .minimum_excluded = true};
}

inline constexpr double most_steps = 1e12;

std::vector<Key> model_keys();
std::vector<Key> train_keys();
/// Of what is recorded, of parallelism, and the rest.
std::vector<Key> other_keys();

}  // namespace encore::model
