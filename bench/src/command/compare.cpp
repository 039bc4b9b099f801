// SPDX-License-Identifier: Apache-2.0
#include "compare.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/verdict.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/atomic_file.hpp>
#include <encore/model/memory_forecast.hpp>
#include <encore/model/replay_comparison.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

#include "../device/session.hpp"
#include "configure.hpp"
#include "data.hpp"
#include "json_output.hpp"
#include "learning_rate.hpp"
#include "numbers.hpp"
#include "ranks.hpp"
#include "report/gather.hpp"
#include "report/page.hpp"

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;

/// Everything that is said about a comparison.
struct Result {
  model::ReplayComparison comparison;
  model::MemoryForecast memory;
  graph::Measurements measurements;
  graph::Verdict verdict;
  std::string device;
};

Result run(const CompareOptions& options, const model::Configuration& configuration, TrainingData& data,
           const Seat& seat) {
  const auto trainer = model::make_trainer(configuration, seat.groups);
  if (options.configuration.load) model::load_checkpoint(*options.configuration.load, *trainer);
  Result result;
  result.device = trainer->device_description();
  result.comparison = model::compare_eager_with_replay(
      *trainer, options.steps,
      {.set_batch = [&, length = recorded_length(configuration)](
                        std::int64_t done,
                        model::Trainer& trained) { data.set_batch(done, trained, length); },
       .learning_rate = [&](std::int64_t done) { return learning_rate(configuration.train, done); }},
      {.block_steps = block_steps(options.steps), .noise_milliseconds = options.noise_milliseconds});
  result.memory = model::forecast_memory(configuration, trainer->layout().shard());
  result.measurements = {.times = result.comparison.blocks,
                         .capture_seconds = result.comparison.capture_seconds,
                         .eager_bytes = result.memory.allocated(),
                         .replay_bytes = result.memory.allocated() + result.comparison.graph_bytes,
                         .loss_difference = result.comparison.loss_difference,
                         .difference = result.comparison.difference};
  result.verdict = graph::judge(result.measurements, {.threshold = options.threshold / 100});
  return result;
}

std::string break_even_text(const graph::Verdict& verdict) {
  return verdict.break_even_steps ? fmt::format("after {} steps", *verdict.break_even_steps) : "never";
}

std::string verdict_line(const Result& result) {
  const graph::Verdict& verdict = result.verdict;
  if (result.comparison.steps == 0)
    return fmt::format("verdict: {}: nothing could be replayed, {}", graph::name_of(verdict.decision),
                       result.comparison.why_not);
  std::string text = fmt::format("verdict: {}", graph::name_of(verdict.decision));
  if (verdict.small_gain) text += ", or a small gain";
  return text + fmt::format(": {}", verdict.reason);
}

std::string text_of(const Result& result) {
  const model::ReplayComparison& comparison = result.comparison;
  if (comparison.steps == 0) return verdict_line(result) + '\n';
  const graph::Verdict& verdict = result.verdict;
  std::string text = fmt::format("{} steps of each kind in {} pairs of blocks\n", comparison.steps,
                                 comparison.blocks.eager.size());
  text += fmt::format("eager:       {:.3f} ms a step, {} kernels\n", comparison.eager_milliseconds,
                      comparison.eager_launches);
  text += fmt::format("replay:      {:.3f} ms a step, {} graph nodes\n", comparison.replay_milliseconds,
                      comparison.graph_nodes);
  if (const auto& speedup = verdict.speedup)
    text += fmt::format("speed-up:    {:.3f}x, {:.1f} % interval {:.3f} to {:.3f}\n", speedup->speedup,
                        100 * speedup->confidence, speedup->lower, speedup->upper);
  using enum model::MemoryUse;
  const model::MemoryForecast& memory = result.memory;
  const std::size_t trained = memory[parameter] + memory[gradient] + memory[optimizer_state];
  text += fmt::format(
      "memory:      {} of weights, gradients and moments, {} of arena, {} of graphs (forecast {})\n",
      bytes_text(static_cast<double>(trained)), bytes_text(static_cast<double>(memory[arena])),
      bytes_text(static_cast<double>(comparison.graph_bytes)),
      bytes_text(static_cast<double>(memory[graphs])));
  text += fmt::format("numbers:     {}; largest loss difference {:g}\n",
                      comparison.identical() ? "every bit is the same" : comparison.difference,
                      comparison.loss_difference);
  text += fmt::format("capture:     {:.1f} ms once, paid for {}\n", 1000 * comparison.capture_seconds,
                      break_even_text(verdict));
  return text + verdict_line(result) + '\n';
}

Json json_of(const CompareOptions& options, const model::Configuration& configuration, const Result& result) {
  const model::ReplayComparison& comparison = result.comparison;
  const graph::Verdict& verdict = result.verdict;
  Json json{{"verdict", graph::name_of(verdict.decision)},
            {"reason", comparison.steps == 0 ? comparison.why_not : verdict.reason},
            {"steps", comparison.steps},
            {"pairs", comparison.blocks.eager.size()},
            {"identical", comparison.identical()},
            {"loss_difference", comparison.loss_difference}};
  json["difference"] = comparison.difference.empty() ? Json() : Json(comparison.difference);
  json["threshold_percent"] = options.threshold;
  json["noise_ms"] = options.noise_milliseconds;
  json["small_gain"] = verdict.small_gain;
  if (const auto& speedup = verdict.speedup)
    json["speedup"] = {{"median", speedup->speedup},
                       {"lower", speedup->lower},
                       {"upper", speedup->upper},
                       {"confidence", speedup->confidence}};
  json["eager_ms"] = comparison.eager_milliseconds;
  json["replay_ms"] = comparison.replay_milliseconds;
  json["saved_ms"] = verdict.saved_milliseconds;
  json["capture_ms"] = 1000 * comparison.capture_seconds;
  json["break_even_steps"] = verdict.break_even_steps ? Json(*verdict.break_even_steps) : Json();
  json["eager_launches"] = comparison.eager_launches;
  json["graph_nodes"] = comparison.graph_nodes;
  json["graph_bytes"] = comparison.graph_bytes;
  json["eager_bytes"] = result.measurements.eager_bytes;
  json["replay_bytes"] = result.measurements.replay_bytes;
  json["memory"] = memory_json(result.memory);
  json["blocks"] = {{"eager_ms", comparison.blocks.eager}, {"replay_ms", comparison.blocks.replay}};
  json["device"] = result.device;
  json["configuration"] = Json::parse(model::to_json(configuration));
  return json;
}

Report report_of(const CompareOptions& options, const model::ResolvedConfiguration& resolved,
                 const Result& result) {
  Report report;
  report.title =
      fmt::format("{}, eager and replayed on {}",
                  options.configuration.preset.value_or(resolved.configuration.model.family), result.device);
  add_date(report);
  report.facts.push_back({"device", result.device});
  if (options.noise_milliseconds > 0)
    report.facts.push_back({"added noise", fmt::format("up to {:g} ms a step", options.noise_milliseconds)});
  add_configuration(report, resolved);
  report.verdict = report_verdict(result.comparison, result.verdict, options.threshold / 100);
  return report;
}

}  // namespace

std::int64_t block_steps(std::int64_t steps) {
  // As many pairs as the interval can use, and blocks as long as there is time for.
  constexpr std::int64_t wanted_pairs = 20;
  constexpr std::int64_t longest_block = 5;
  return std::clamp<std::int64_t>(steps / wanted_pairs, 1, longest_block);
}

namespace {

int compare_rank(const CompareOptions& options, const model::ResolvedConfiguration& resolved,
                 const Seat& seat, Console& console) {
  TrainingData data(options.data, resolved.configuration, seat.data_rank);
  const DeviceSession session(options.threads);
  const Result result = run(options, resolved.configuration, data, seat);
  if (options.report && seat.speaks()) write_page(*options.report, report_of(options, resolved, result));
  if (options.json) {
    print_json(json_of(options, resolved.configuration, result), console);
  } else {
    console.print(text_of(result));
  }
  if (result.verdict.decision == graph::Decision::different_numbers)
    throw ValidationError(
        fmt::format("eager against replay: not the same: {}", result.comparison.difference));
  return 0;
}

}  // namespace

int compare(const CompareOptions& options, Console& console) {
  const model::ResolvedConfiguration resolved = resolve(options.configuration, "bytes");
  if (options.report)
    const model::AtomicFile probe(*options.report);  // Found out before, and not after it all.
  return on_ranks(resolved.configuration, options.threads, console, [&](const Seat& seat, Console& of_rank) {
    return compare_rank(options, resolved, seat, of_rank);
  });
}

}  // namespace encore::command
