// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "console.hpp"
#include "training_log.hpp"

namespace encore::command {

/// Shows how far a training is: a bar on a terminal, a line now and then elsewhere, nothing when quiet.
class Progress {
 public:
  Progress(Console& console, std::int64_t steps_done, std::int64_t steps, bool quiet);

  void show(const StepRecord& record);
  /// A line of its own; the bar is drawn again after it.
  void note(const std::string& line);
  /// Leaves the last bar where it is.
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  std::string figures(const StepRecord& record) const;
  void draw_bar(const StepRecord& record);

  Console& console_;
  std::int64_t first_;
  std::int64_t steps_;
  bool quiet_;
  bool terminal_;
  bool bar_stands_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
  std::int64_t shown_step_ = 0;
};

}  // namespace encore::command
