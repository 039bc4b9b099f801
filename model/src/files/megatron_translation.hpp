// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "configuration_settings.hpp"

namespace encore::model {

/// What parts of the translation of Megatron's keys share.
class MegatronTranslation {
 public:
  using Entry = MegatronSettings::value_type;

  MegatronTranslation(const MegatronSettings& megatron, Settings& settings, std::vector<std::string>& notes)
      : megatron_(megatron), settings_(settings), notes_(notes) {}

  /// The setting under this name, or nullptr.
  const Entry* find(std::string_view name) const;
  /// The setting under this name, or nullptr where it is absent or `false`. Throws ConfigurationError for
  /// anything but `true` and `false`.
  const Entry* find_true(std::string_view name) const;
  /// Of several names for one thing, the one that is set. Throws by the rule `two_forms` where two are.
  const Entry* find_one(std::initializer_list<std::string_view> names) const;

  /// Throws by the rule where a person set our `key` too. A preset's value gives way to Megatron's key.
  void require_one_form(const Entry* megatron, std::string_view key, GraphRule rule) const;
  void set(std::string_view key, std::string_view text, const Entry& from);
  /// The whole number that our `key` is set to, if it is.
  std::optional<std::int64_t> whole(std::string_view key) const;
  void add_note(GraphRule rule, const std::string& what);

 private:
  const MegatronSettings& megatron_;
  Settings& settings_;
  std::vector<std::string>& notes_;
};

/// `cuda_graph_impl = 'local' (--set)`.
std::string shown(const MegatronTranslation::Entry& entry);

/// A name for one of our keys and nothing more.
void translate_plain(MegatronTranslation& translation, std::string_view name, std::string_view key);

/// The keys of recompute, delayed weight gradients and parallelism.
void translate_training_keys(MegatronTranslation& translation);

/// The keys of experts, Mamba layers and attention.
void translate_model_keys(MegatronTranslation& translation);

/// The keys that say what is recorded.
void translate_graph_keys(MegatronTranslation& translation);

}  // namespace encore::model
