// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace encore::model {

/// A key and its value, as a person would type it.
struct PresetSetting {
  std::string_view key;
  std::string_view value;
};

struct Preset {
  std::string_view name;
  std::string_view help;
  std::span<const PresetSetting> settings;
};

/// All presets, in the order in which they are listed.
std::span<const Preset> presets();

/// Throws ConfigurationError, with the nearest name, if there is no such preset.
const Preset& preset(std::string_view name);

}  // namespace encore::model
