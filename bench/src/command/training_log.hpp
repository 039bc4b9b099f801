// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/line_log.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace encore::command {

/// What is known about one step.
struct StepRecord {
  model::StepResult result;
  double learning_rate;
  double tokens_per_second;
  std::optional<double> evaluation_loss = {};  ///< after the step, where it was asked for
};

/// The record as one JSON object: step, loss, grad_norm, lr, tokens_per_s, ms, mode, graph_nodes, host_syncs,
/// fallbacks, tokens, computed_tokens, validated, skipped; with `has_experts` also balance_loss, router_z_loss,
/// expert_rows_needed, over_budget; where it is known eval_loss. Numbers have as many digits as bring back the same double.
std::string log_line(const StepRecord& record, bool has_experts);

/// The log of a run that begins after `steps_done` steps: a resumed run keeps the lines of the steps before it.
/// Throws OutputFileError.
std::unique_ptr<model::LineLog> open_log(const std::filesystem::path& path, std::int64_t steps_done);

/// Puts the log in place that a run left unfinished because it was killed after its last checkpoint: the partial log whose
/// last line is of that step. Does nothing where there is no such log.
void finish_left_log(const std::filesystem::path& path, std::int64_t steps_done);

}  // namespace encore::command
