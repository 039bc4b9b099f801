// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "numbers.hpp"

namespace encore::command {

namespace {

constexpr std::chrono::milliseconds between_bars{100};
constexpr std::chrono::seconds between_lines{20};
constexpr std::int64_t lines_in_all = 20;
constexpr const char* clear_line = "\r\x1b[K";

}  // namespace

Progress::Progress(Console& console, std::int64_t steps_done, std::int64_t steps, bool quiet)
    : console_(console),
      first_(steps_done),
      steps_(steps),
      quiet_(quiet),
      terminal_(console.is_terminal()),
      shown_step_(steps_done) {}

std::string Progress::figures(const StepRecord& record) const {
  const std::int64_t step = record.result.step;
  const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
  const double left = spent / static_cast<double>(step - first_) * static_cast<double>(steps_ - step);
  return fmt::format("loss {:.4f}  {:.0f} tokens/s  {}", record.result.loss, record.tokens_per_second,
                     step == steps_ ? duration_text(spent) : duration_text(left) + " left");
}

void Progress::show(const StepRecord& record) {
  if (quiet_) return;
  const std::int64_t step = record.result.step;
  const auto since = Clock::now() - shown_;
  const bool edge = step == first_ + 1 || step == steps_;
  if (terminal_) {
    if (!edge && since < between_bars) return;
    draw_bar(record);
  } else {
    const bool due = (step - shown_step_) * lines_in_all >= steps_ - first_ || since >= between_lines;
    if (!edge && !due) return;
    console_.line(
        fmt::format("step {:>{}}/{}  {}", step, std::to_string(steps_).size(), steps_, figures(record)));
  }
  shown_ = Clock::now();
  shown_step_ = step;
}

void Progress::draw_bar(const StepRecord& record) {
  const std::string right = fmt::format(" {}/{}  {}", record.result.step, steps_, figures(record));
  const int width = std::clamp(console_.columns() - static_cast<int>(right.size()) - 3, 0, 40);
  const auto full = static_cast<int>(width * record.result.step / steps_);
  console_.print(fmt::format("{}[{:=<{}}{: <{}}]{}", clear_line, "", full, "", width - full, right));
  bar_stands_ = true;
}

void Progress::note(const std::string& line) {
  if (bar_stands_) console_.print(clear_line);
  bar_stands_ = false;
  console_.line(line);
}

void Progress::end() {
  if (bar_stands_) console_.line("");
  bar_stands_ = false;
}

}  // namespace encore::command
