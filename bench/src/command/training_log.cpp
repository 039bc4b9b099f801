// SPDX-License-Identifier: Apache-2.0
#include "training_log.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <string>

namespace encore::command {

namespace {

/// The step of an old line; 0 when it is no line of ours.
std::int64_t step_of(std::string_view line) {
  const auto object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object()) return 0;
  const auto step = object.find("step");
  return step != object.end() && step->is_number_integer() ? step->get<std::int64_t>() : 0;
}

}  // namespace

std::string log_line(const StepRecord& record, bool has_experts) {
  const model::StepResult& result = record.result;
  nlohmann::ordered_json line{{"step", result.step},
                              {"loss", result.loss},
                              {"grad_norm", result.gradient_norm},
                              {"lr", record.learning_rate},
                              {"tokens_per_s", record.tokens_per_second},
                              {"ms", result.milliseconds},
                              {"mode", graph::name_of(result.report.mode)},
                              {"graph_nodes", result.report.graph_nodes},
                              {"host_syncs", result.report.host_syncs},
                              {"fallbacks", result.report.fallbacks},
                              {"tokens", result.tokens},
                              {"computed_tokens", result.computed_tokens},
                              {"validated", result.validated},
                              {"skipped", result.skipped}};
  if (has_experts) {
    line["balance_loss"] = result.balance_loss;
    line["router_z_loss"] = result.router_z_loss;
    line["expert_rows_needed"] = result.expert_rows_needed;
    line["over_budget"] = result.over_budget;
  }
  if (record.evaluation_loss) line["eval_loss"] = *record.evaluation_loss;
  return line.dump();
}

std::unique_ptr<model::LineLog> open_log(const std::filesystem::path& path, std::int64_t steps_done) {
  if (steps_done == 0) return std::make_unique<model::LineLog>(path);
  return std::make_unique<model::LineLog>(path, [steps_done](std::string_view line) {
    const std::int64_t step = step_of(line);
    return step >= 1 && step <= steps_done;
  });
}

void finish_left_log(const std::filesystem::path& path, std::int64_t steps_done) {
  std::filesystem::path partial = path;
  partial += ".partial";
  std::ifstream stream(partial);
  std::int64_t last_step = 0;
  for (std::string line; std::getline(stream, line);) last_step = std::max(last_step, step_of(line));
  if (last_step == steps_done) open_log(path, steps_done)->finish();
}

}  // namespace encore::command
