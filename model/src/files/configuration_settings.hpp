// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "configuration_table.hpp"

namespace encore::model {

/// The kinds of sources, each stronger than those before it.
enum class Strength { preset, checkpoint, file, assignment, flag };

struct Setting {
  Value value;
  Strength strength;
  std::string source;
};
using Settings = std::map<std::string, Setting, std::less<>>;

/// A setting under one of Megatron's names, not yet understood.
struct MegatronSetting {
  std::string text;
  Strength strength;
  std::string source;
};
using MegatronSettings = std::map<std::string, MegatronSetting, std::less<>>;

/// How a value of a Megatron key is written in JSON.
enum class MegatronKind { text, texts, number, real, truth };

/// One of Megatron's names.
struct MegatronKey {
  std::string_view name;
  MegatronKind kind;
  std::string_view meaning;  ///< in keys of this project, in words
};
std::span<const MegatronKey> megatron_keys();
/// The key of that name, or nullptr.
const MegatronKey* find_megatron_key(std::string_view name);

/// Adds to `settings` what Megatron's keys mean here, and to `notes` what is to be said about them. Throws
/// ConfigurationError for combinations that Megatron refuses too, and for a setting in two forms.
void translate_megatron(const MegatronSettings& megatron, Settings& settings,
                        std::vector<std::string>& notes);

/// Fills in what no setting gives and what depends on other values: the family's and the derived defaults.
/// Throws ConfigurationError if a required key is missing.
void apply_defaults(Configuration& configuration, const Settings& settings);

}  // namespace encore::model
