// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/verdict.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/replay_comparison.hpp>
#include <encore/model/trainer.hpp>

#include <string>

#include "../training_log.hpp"
#include "report.hpp"

namespace encore::command {

ReportStep report_step(const StepRecord& record);

enum class ProgramInReport { leave_out, include };

/// What is known of a configuration without running it: facts, keys, the step's program with its memory. Where the program
/// cannot be made, such as for a backend that this build lacks, the report says so. Including it needs a DeviceSession.
void add_configuration(Report& report, const model::ResolvedConfiguration& resolved,
                       ProgramInReport program = ProgramInReport::include);

/// The device that a trainer runs on.
void add_device(Report& report, const model::Trainer& trainer);

/// The present time, as a fact.
void add_date(Report& report);

/// To be called after add_configuration: gives the program's segments their times.
void add_profile(Report& report, graph::StepProfile profile);

ReportVerdict report_verdict(const model::ReplayComparison& comparison, const graph::Verdict& verdict,
                             double threshold);

/// `llama model of 2 layers, 12.3 thousand parameters`.
std::string model_text(const model::Configuration& configuration);

}  // namespace encore::command
