// SPDX-License-Identifier: Apache-2.0
#include "train.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <csignal>
#include <cstring>
#include <string>

#include "numbers.hpp"
#include "profile_report.hpp"
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

}  // namespace

int train(const TrainOptions& options, Console& console) {
  Training training(options, console);
  if (!options.quiet) console.line(training.introduction());
  if (training.complete()) {
    console.line(fmt::format("nothing to do: {} steps are done already; more by --steps",
                             training.trainer().steps_done()));
    return 0;
  }
  const int signal = training.run();
  console.line(summary(training));
  if (options.save) console.line(fmt::format("saved: {}", options.save->string()));
  if (signal != 0) {
    console.line(
        fmt::format("interrupted ({}) after step {}", ::strsignal(signal), training.trainer().steps_done()));
    return 128 + signal;
  }
  const bool captures = training.trainer().configuration().graph.impl != model::GraphImplementation::none;
  if (options.verdict_steps > 0 && captures) print_verdict(training.compare(options.verdict_steps), console);
  if (options.profile)
    console.print('\n' + profile_text(training.profile(), ProfileGrouping::module,
                                      name_of(training.trainer().configuration().train.precision)));
  return 0;
}

}  // namespace encore::command
