// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/verdict.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace encore::model {

/// What a training step takes in, by the number of steps done before it. Both must give the same for the same step.
struct StepInputs {
  /// Calls trainer.set_batch.
  std::function<void(std::int64_t steps_done, Trainer& trainer)> set_batch;
  std::function<double(std::int64_t steps_done)> learning_rate;
};

struct ComparisonOptions {
  std::int64_t block_steps = 5;  ///< steps of one kind that run behind one another
  /// Adds a busy wait of 0 to so many milliseconds, drawn anew for each step of either kind, to its time: to see what
  /// a verdict makes of noise.
  double noise_milliseconds = 0;
};

/// What came of running the same steps eagerly and by replay.
struct ReplayComparison {
  std::int64_t steps = 0;         ///< of each kind; 0: nothing could be replayed
  std::string why_not;            ///< the reason then
  std::string difference;         ///< the first difference found, as a clause; empty: every bit is the same
  double loss_difference = 0;     ///< largest over the steps
  double eager_milliseconds = 0;  ///< median of a step
  double replay_milliseconds = 0;
  graph::PairedTimes blocks;       ///< mean of the steps of each pair of blocks
  double capture_seconds = 0;      ///< of the graphs that were recorded for this comparison
  std::size_t graph_bytes = 0;     ///< of the same graphs
  std::size_t graph_nodes = 0;     ///< that a step replays
  std::size_t eager_launches = 0;  ///< that an eager step makes

  bool identical() const { return steps > 0 && difference.empty(); }
  double speedup() const { return eager_milliseconds / replay_milliseconds; }
};

/// Runs `steps` steps eagerly and by replay, each time from the same state, and compares every bit of the losses,
/// gradient norms, weights, gradients, moments, master weights and random positions. Runs blocks of steps by turns,
/// so that a drift of the machine's speed meets both. Before that it steps until the graphs exist. Afterwards the
/// trainer is in the state in which it was. Holds up to four copies of that state, on the device where there
/// is room. States are compared by checksums of all their bits; where those differ, on the host, by name.
ReplayComparison compare_eager_with_replay(Trainer& trainer, std::int64_t steps, const StepInputs& inputs,
                                           const ComparisonOptions& options = {});

}  // namespace encore::model
