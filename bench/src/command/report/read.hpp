// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report.hpp"

namespace encore::command {

/// What files say that other commands wrote.
struct ReportSources {
  std::vector<ReportStep> steps;
  std::vector<ReportEvaluation> evaluations;
  std::optional<ReportVerdict> verdict;
  std::optional<graph::StepProfile> profile;
  std::string configuration;  ///< a JSON object; empty where no file holds one
  std::string device;
};

/// Adds a training log (`encore train --log`), a verdict (`encore ab --json`) or a profile (`encore profile --by segment
/// --json`): which it is, its content says. A torn last line, as a killed run leaves, is left out. Throws InputFileError
/// naming file and line.
void add_file(ReportSources& sources, const std::filesystem::path& file);

}  // namespace encore::command
