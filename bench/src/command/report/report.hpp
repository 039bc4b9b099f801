// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/step_profile.hpp>
#include <encore/graph/step_report.hpp>
#include <encore/graph/verdict.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace encore::command {

/// One training step. Numbers that a log has as null are not a number.
struct ReportStep {
  std::int64_t step = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  double milliseconds = 0;
  graph::StepMode mode = graph::StepMode::eager;
  std::int64_t graph_nodes = 0;
};

/// The loss on the evaluation data after a step.
struct ReportEvaluation {
  std::int64_t step = 0;
  double loss = 0;
};

/// A buffer in the arena, from its first to its last segment, both included.
struct ReportBuffer {
  std::string name;
  std::string module;  ///< of the first segment
  std::size_t offset = 0;
  std::size_t bytes = 0;
  std::size_t first = 0;
  std::size_t last = 0;
};

struct ReportSegment {
  std::string name;
  std::string kind;  ///< the name without its numbers: alike in all layers and microbatches
  std::string module;
  std::string phase;
  bool captured = false;
  std::string reason;  ///< why it is eager
  std::string change;  ///< what would capture it
  std::size_t kernels = 0;
  std::optional<graph::SegmentProfile> time;  ///< where the step was profiled
};

struct ReportRun {
  std::string name;
  std::size_t first = 0;
  std::size_t end = 0;
  bool captured = false;
};

struct ReportMemory {
  std::string use;
  std::size_t bytes = 0;
};

/// The step as it is planned.
struct ReportProgram {
  std::vector<ReportSegment> segments;
  std::vector<ReportRun> runs;
  std::vector<ReportBuffer> buffers;
  std::size_t arena_bytes = 0;
  std::vector<ReportMemory> memory;
};

/// Whether graphs are worth keeping.
struct ReportVerdict {
  std::string decision;  ///< as graph::name_of says it
  std::string reason;
  std::optional<graph::SpeedupInterval> speedup;
  graph::PairedTimes blocks;
  double threshold = 0;  ///< the gain that is asked for: 0.02
  bool small_gain = false;
  std::int64_t steps = 0;  ///< of each kind; 0: nothing could be replayed
  std::string difference;  ///< empty: every bit is the same
  double loss_difference = 0;
  double eager_milliseconds = 0;
  double replay_milliseconds = 0;
  double capture_milliseconds = 0;
  std::optional<std::int64_t> break_even_steps;
  std::int64_t eager_launches = 0;
  std::int64_t graph_nodes = 0;
};

struct ReportFact {
  std::string name;
  std::string value;
  std::string source = {};  ///< of a configuration key
};

/// What a page tells. All texts are as they came: nothing in them is markup.
struct Report {
  std::string title;
  std::string failure;  ///< why the run ended before it was done
  std::vector<ReportFact> facts;
  std::vector<ReportStep> steps;
  std::vector<ReportEvaluation> evaluations;
  std::optional<ReportProgram> program;
  std::string no_program;  ///< why there is none
  std::optional<ReportVerdict> verdict;
  std::optional<graph::StepProfile> profile;
  std::vector<ReportFact> settings;  ///< configuration keys
  std::vector<std::string> notes;
};

}  // namespace encore::command
