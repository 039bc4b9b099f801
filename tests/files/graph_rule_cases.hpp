// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/graph_rules.hpp>

#include <string>
#include <utility>
#include <vector>

using Assignments = std::vector<std::string>;

/// Settings that meet a rule, and the same after the change that the rule proposes.
struct RuleCase {
  encore::model::GraphRule rule;
  Assignments meets;
  std::vector<Assignments> changed;
};

const std::vector<RuleCase>& refused_cases();
/// Those about experts, Mamba layers, recompute and pipelines.
const std::vector<RuleCase>& refused_part_cases();
const std::vector<RuleCase>& noted_cases();

/// Settings that others refuse. A lifted rule without any is about what happens while a program runs: there
/// is nothing to configure.
const std::vector<std::pair<encore::model::GraphRule, std::vector<Assignments>>>& lifted_cases();

/// On top of the preset bytes.
encore::model::ConfigurationSources sources_of(const Assignments& assignments);
/// With a model of Mamba, attention, MLP and experts.
Assignments hybrid(const Assignments& assignments);
std::string joined(const Assignments& assignments);
/// The error's sentence, or an empty one if the settings are accepted.
std::string refusal_of(const Assignments& assignments);
bool begins_with_id(const std::string& sentence);
