// SPDX-License-Identifier: Apache-2.0
#include "train.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/atomic_file.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "configure.hpp"
#include "numbers.hpp"
#include "profile.hpp"
#include "profile_report.hpp"
#include "ranks.hpp"
#include "report/gather.hpp"
#include "report/page.hpp"
#include "training.hpp"

namespace encore::command {

namespace {

std::string tuning_text(const model::TuningSummary& tuning) {
  std::string text;
  if (tuning.measured + tuning.taken > 0)
    text = fmt::format("; {} matrix products tuned in {:.2f} s, {} taken from the tuning cache",
                       tuning.measured, tuning.seconds, tuning.taken);
  if (tuning.other_entries > 0)
    text +=
        fmt::format("; {} entries of the tuning cache are for another GPU or library", tuning.other_entries);
  if (!tuning.note.empty()) text += "\nnote: " + tuning.note;
  return text;
}

std::string summary(const Training& training) {
  const TrainingTotals& totals = training.totals();
  std::string text = fmt::format("{} steps in {}: loss {:.4f}", totals.steps, duration_text(totals.seconds),
                                 totals.last_loss);
  if (totals.replayed > 0)
    text += fmt::format("; {} of them replayed, {} graph nodes a step, {} host waits, {} fallbacks",
                        totals.replayed, totals.graph_nodes, totals.host_waits_in_replay, totals.fallbacks);
  if (training.has_lengths()) {
    const model::LengthStatistics lengths = training.trainer().length_statistics();
    text += fmt::format("; {} lengths recorded, which {:.1f} % of the steps replayed; {:.1f} % padding",
                        lengths.recorded_lengths, 100 * lengths.coverage(), 100 * lengths.waste());
  }
  return text + tuning_text(training.trainer().tuning());
}

void print_verdict(const model::ReplayComparison& comparison, Console& console) {
  if (comparison.steps == 0) {
    console.line(fmt::format("eager against replay: nothing to compare, {}", comparison.why_not));
    return;
  }
  if (!comparison.identical())
    throw ValidationError(fmt::format("eager against replay: not the same: {}", comparison.difference));
  console.line(fmt::format(
      "eager against replay: bit-identical over {} steps (loss, weights, optimizer state, random "
      "positions); eager {:.2f} ms, replay {:.2f} ms a step ({:.2f}x)",
      comparison.steps, comparison.eager_milliseconds, comparison.replay_milliseconds, comparison.speedup()));
}

/// The page, with what else is known by then.
void write_report(Training& training, const std::filesystem::path& path, const std::string& failure,
                  std::optional<model::ReplayComparison> comparison,
                  const std::optional<graph::StepProfile>& profile) {
  Report report = training.take_report(failure);
  if (comparison) {
    const graph::VerdictCriteria criteria;
    // What the training recorded, the comparison found.
    comparison->capture_seconds += training.totals().capture_seconds;
    const graph::Verdict verdict = graph::judge({.times = comparison->blocks,
                                                 .capture_seconds = comparison->capture_seconds,
                                                 .loss_difference = comparison->loss_difference,
                                                 .difference = comparison->difference},
                                                criteria);
    report.verdict = report_verdict(*comparison, verdict, criteria.threshold);
  }
  if (profile) add_profile(report, *profile);
  write_page(path, report);
}

/// A run that fails still leaves its page.
int run(Training& training, const TrainOptions& options, const Seat& seat) {
  try {
    return training.run();
  } catch (const Error& error) {
    try {
      if (options.report && seat.speaks()) write_report(training, *options.report, error.what(), {}, {});
    } catch (const Error&) {
      // The first error is the one to report.
    }
    throw;
  }
}

}  // namespace

namespace {

/// One rank's part of it.
int train_rank(const TrainOptions& options, const model::ResolvedConfiguration& resolved, const Seat& seat,
               Console& console) {
  Training training(options, console, seat, resolved);
  if (!options.quiet) console.line(training.introduction());
  if (training.complete()) {
    console.line(fmt::format("nothing to do: {} steps are done already; more by --steps",
                             training.trainer().steps_done()));
    return 0;
  }
  const int signal = run(training, options, seat);
  console.line(summary(training));
  if (options.save) console.line(fmt::format("saved: {}", options.save->string()));
  std::optional<model::ReplayComparison> comparison;
  std::optional<graph::StepProfile> profile;
  const auto report = [&](const std::string& failure) {
    if (!options.report || !seat.speaks()) return;
    write_report(training, *options.report, failure, comparison, profile);
    console.line(fmt::format("report: {}", options.report->string()));
  };
  if (signal != 0) {
    const std::string sentence =
        fmt::format("interrupted ({}) after step {}", ::strsignal(signal), training.trainer().steps_done());
    report(sentence);
    console.line(sentence);
    return 128 + signal;
  }
  const bool captures = training.trainer().configuration().graph.impl != model::GraphImplementation::none;
  if (options.verdict_steps > 0 && captures) comparison = training.compare(options.verdict_steps);
  if (options.profile || options.profile_file) profile = training.profile();
  if (options.profile_file && seat.speaks())
    model::write_file_atomically(
        *options.profile_file,
        profile_document(*profile, ProfileGrouping::segment, training.trainer()).dump(2) + '\n');
  if (options.profile)
    console.print('\n' + profile_text(*profile, ProfileGrouping::module,
                                      name_of(training.trainer().configuration().train.precision)));
  // What was measured is told first, in case that the file cannot be written; a replay that differs is in the report too.
  report({});
  if (comparison) print_verdict(*comparison, console);
  return 0;
}

}  // namespace

int train(const TrainOptions& options, Console& console) {
  if (options.log && options.save && *options.log == *options.save)
    throw UsageError(fmt::format("--log and --save name the same file, '{}'", options.log->string()));
  if (options.report && (options.report == options.log || options.report == options.save))
    throw UsageError(
        fmt::format("--report names the file of --log or --save, '{}'", options.report->string()));
  const model::ResolvedConfiguration resolved = resolve(options.configuration, "bytes");
  return on_ranks(resolved.configuration, options.threads, console, [&](const Seat& seat, Console& of_rank) {
    return train_rank(options, resolved, seat, of_rank);
  });
}

}  // namespace encore::command
