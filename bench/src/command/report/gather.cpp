// SPDX-License-Identifier: Apache-2.0
#include "gather.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/eager_reason.hpp>
#include <encore/model/memory_forecast.hpp>
#include <encore/model/step_plan.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "../numbers.hpp"
#include "../profile_report.hpp"

namespace encore::command {

namespace {

void add_segments(ReportProgram& program, const model::StepPlan& plan, const graph::CapturePolicy& policy) {
  const auto& segments = plan.outline.segments();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const graph::Segment& segment = segments[i];
    ReportSegment& added = program.segments.emplace_back();
    added.name = segment.name;
    added.kind = kind_of(segment.name);
    added.module = graph::name_of(segment.module);
    added.phase = graph::name_of(segment.phase);
    added.kernels = i < plan.kernels.size() ? plan.kernels[i].size() : 0;
    const auto eager = graph::why_eager(segment, policy);
    added.captured = !eager;
    if (!eager) continue;
    added.reason = eager->reason;
    added.change = eager->change;
  }
}

void add_buffers(ReportProgram& program, const model::StepPlan& plan) {
  for (const graph::PlannedActivation& activation : plan.memory.activations)
    program.buffers.push_back({.name = plan.outline.buffer(activation.buffer).name,
                               .module = program.segments[activation.first_segment].module,
                               .offset = activation.offset,
                               .bytes = activation.bytes,
                               .first = activation.first_segment,
                               .last = activation.last_segment});
  program.arena_bytes = plan.memory.arena_bytes;
}

ReportProgram program_of(const model::Configuration& configuration) {
  const model::StepPlan plan = model::plan_step(configuration, model::KernelLabels::collect);
  ReportProgram program;
  add_segments(program, plan, model::capture_policy_of(configuration));
  add_buffers(program, plan);
  for (const graph::Run& run : plan.runs)
    program.runs.push_back({run.name, run.first, run.end, run.captured});
  const model::MemoryForecast memory = model::forecast_memory(configuration, plan);
  for (std::size_t use = 0; use < model::memory_uses; ++use)
    if (memory.bytes[use] > 0)
      program.memory.push_back(
          {std::string(model::name_of(static_cast<model::MemoryUse>(use))), memory.bytes[use]});
  return program;
}

}  // namespace

ReportStep report_step(const StepRecord& record) {
  return {.step = record.result.step,
          .loss = record.result.loss,
          .gradient_norm = record.result.gradient_norm,
          .learning_rate = record.learning_rate,
          .tokens_per_second = record.tokens_per_second,
          .milliseconds = record.result.milliseconds,
          .mode = record.result.report.mode,
          .graph_nodes = static_cast<std::int64_t>(record.result.report.graph_nodes)};
}

std::string model_text(const model::Configuration& configuration) {
  return fmt::format("{} model of {} layers, {} parameters", configuration.model.family,
                     configuration.model.layers, count_text(model::parameter_count(configuration.model)));
}

void add_configuration(Report& report, const model::ResolvedConfiguration& resolved,
                       ProgramInReport program) {
  const model::Configuration& configuration = resolved.configuration;
  const model::TrainConfiguration& train = configuration.train;
  report.facts.push_back({"model", model_text(configuration)});
  report.facts.push_back({"precision", std::string(name_of(train.precision))});
  report.facts.push_back({"backend", std::string(name_of(configuration.backend))});
  report.facts.push_back(
      {"a step", fmt::format("{} x {} x {} tokens", train.microbatches, train.microbatch, train.seq)});
  report.facts.push_back({"graphs", std::string(name_of(configuration.graph.impl))});
  for (const auto& entry : resolved.entries)
    if (entry.has_meaning) report.settings.push_back({entry.key, entry.value, entry.source});
  for (const std::string& note : resolved.notes) report.notes.push_back(note);
  if (program == ProgramInReport::leave_out) return;
  try {
    report.program = program_of(configuration);
  } catch (const Error& error) {
    report.no_program = fmt::format("Not shown: {}.", error.what());
  }
}

void add_device(Report& report, const model::Trainer& trainer) {
  report.facts.push_back({"device", trainer.device_description()});
  report.facts.push_back({"matrix products", trainer.blas_description()});
}

void add_date(Report& report) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  report.facts.push_back({"date", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(now))});
}

void add_profile(Report& report, graph::StepProfile profile) {
  if (report.program) {
    std::map<std::string, const graph::SegmentProfile*> by_name;
    for (const graph::SegmentProfile& segment : profile.segments) by_name.emplace(segment.name, &segment);
    for (ReportSegment& segment : report.program->segments)
      if (const auto found = by_name.find(segment.name); found != by_name.end())
        segment.time = *found->second;
  }
  report.profile = std::move(profile);
}

ReportVerdict report_verdict(const model::ReplayComparison& comparison, const graph::Verdict& verdict,
                             double threshold) {
  return {.decision = std::string(graph::name_of(verdict.decision)),
          .reason = comparison.steps == 0 ? comparison.why_not : verdict.reason,
          .speedup = verdict.speedup,
          .blocks = comparison.blocks,
          .threshold = threshold,
          .small_gain = verdict.small_gain,
          .steps = comparison.steps,
          .difference = comparison.difference,
          .loss_difference = comparison.loss_difference,
          .eager_milliseconds = comparison.eager_milliseconds,
          .replay_milliseconds = comparison.replay_milliseconds,
          .capture_milliseconds = 1000 * comparison.capture_seconds,
          .break_even_steps = verdict.break_even_steps,
          .eager_launches = static_cast<std::int64_t>(comparison.eager_launches),
          .graph_nodes = static_cast<std::int64_t>(comparison.graph_nodes)};
}

}  // namespace encore::command
