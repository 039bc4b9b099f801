// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace encore::model {

/// A resolved configuration and where each of its values came from.
struct ResolvedConfiguration {
  struct Entry {
    std::string key;
    std::string value;   ///< as a person would type it
    std::string source;  ///< `default`, `preset bytes`, `--set`, ...
    bool has_meaning;    ///< whether the key is about something that the model has
  };
  Configuration configuration;
  std::vector<Entry> entries;      ///< every key, in the order of the table
  std::vector<std::string> notes;  ///< what was changed or ignored on the way, each with the id of its rule
};

/// Collects settings and resolves them. A later kind of source wins over an earlier one:
///
///   defaults < preset < model of a checkpoint < JSON file < --set < dedicated flags
///
/// and within one kind the last. Values are checked when they are added. Beside the keys of the table,
/// Megatron's spellings are accepted (`megatron_spellings()`); together with the key of this project that
/// means the same they are an error.
///
/// Everything that is wrong is a ConfigurationError whose sentence names the key, the value, its source and
/// what is allowed, or the nearest known key.
class ConfigurationSources {
 public:
  ConfigurationSources();
  ~ConfigurationSources();
  ConfigurationSources(const ConfigurationSources&);
  ConfigurationSources(ConfigurationSources&&) noexcept;
  ConfigurationSources& operator=(ConfigurationSources) noexcept;

  /// See `presets()` for the names.
  ConfigurationSources& preset(std::string_view name);

  /// All model keys at once; `source` says whose they are, as errors show it.
  ConfigurationSources& checkpoint(const ModelConfiguration& model, std::string_view source);

  /// A JSON object of nested sections or dotted keys: {"model": {"layers": 2}, "train.lr": 1e-3}. A file that
  /// cannot be read is an InputFileError.
  ConfigurationSources& file(const std::filesystem::path& path);
  ConfigurationSources& json(std::string_view text, std::string_view source);

  /// `key=value`, as after --set.
  ConfigurationSources& assignment(std::string_view text);

  /// The value of a flag of its own; `flag` is its name, as errors show it.
  ConfigurationSources& flag(std::string_view key, std::string_view value, std::string_view flag);

  /// Whether some source other than the defaults sets the key.
  bool sets(std::string_view key) const;

  ResolvedConfiguration resolve() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The configuration as a JSON object of sections, with every key that has a meaning for it. As a
/// configuration file it resolves to itself.
std::string to_json(const Configuration& configuration);

/// One line of the table of keys, in words, for `info` and for the documentation.
struct KeyDescription {
  std::string name;
  std::string allowed;
  std::string fallback;
  std::string help;
};
std::vector<KeyDescription> configuration_keys();

/// A key as Megatron spells it, and what it means here.
struct MegatronSpelling {
  std::string name;
  std::string meaning;
};
std::vector<MegatronSpelling> megatron_spellings();

/// The page docs/configuration.md.
std::string configuration_keys_as_markdown();

}  // namespace encore::model
