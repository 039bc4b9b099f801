// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/pipeline_schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace encore::model {
namespace {

void check_shape(const PipelineShape& shape) {
  require(shape.stages > 0 && shape.virtual_stages > 0 && shape.microbatches > 0,
          "a pipeline needs at least one stage, one chunk a stage and one microbatch");
  require(shape.virtual_stages == 1 || shape.stages > 1, "several chunks a stage need several stages");
  if (shape.virtual_stages > 1 && shape.microbatches % shape.stages != 0)
    throw ConfigurationError(
        fmt::format("{} microbatches must be a multiple of parallel.pipeline = {}: with "
                    "parallel.virtual_stages above 1 a "
                    "stage changes its chunk after so many microbatches",
                    shape.microbatches, shape.stages));
}

/// The number-th forward (or backward) pass of a stage.
PipelinePass pass_of(const PipelineShape& shape, std::int64_t stage, PassKind kind, std::int64_t number) {
  const std::int64_t group = shape.virtual_stages > 1 ? shape.stages : 1;
  const std::int64_t round = number / (group * shape.virtual_stages);
  const std::int64_t within = number % (group * shape.virtual_stages);
  const std::int64_t turn = within / group;
  const std::int64_t level = kind == PassKind::forward ? turn : shape.virtual_stages - 1 - turn;
  return {kind, round * group + within % group, level * shape.stages + stage};
}

std::int64_t warm_up(const PipelineShape& shape, std::int64_t stage) {
  const std::int64_t behind = shape.stages - stage - 1;
  const std::int64_t passes =
      shape.virtual_stages > 1 ? 2 * behind + (shape.virtual_stages - 1) * shape.stages : behind;
  return std::min(passes, shape.microbatches * shape.virtual_stages);
}

/// One entry for every pass.
template <class Value>
class PassTable {
 public:
  PassTable(const PipelineShape& shape, Value value)
      : chunks_(shape.chunks()),
        forwards_(shape.microbatches * shape.chunks()),
        values_(static_cast<std::size_t>(2 * forwards_), value) {}

  Value& operator[](const PipelinePass& pass) {
    const std::int64_t index = pass.microbatch * chunks_ + pass.chunk;
    return values_[static_cast<std::size_t>(pass.kind == PassKind::forward ? index : forwards_ + index)];
  }

 private:
  std::int64_t chunks_, forwards_;
  std::vector<Value> values_;
};

/// The passes whose results a pass reads: one, or for a backward pass two.
std::vector<PipelinePass> needs(const PipelineShape& shape, const PipelinePass& pass) {
  std::vector<PipelinePass> needed;
  if (pass.kind == PassKind::backward) {
    needed.push_back({PassKind::forward, pass.microbatch, pass.chunk});
    if (pass.chunk + 1 < shape.chunks())
      needed.push_back({PassKind::backward, pass.microbatch, pass.chunk + 1});
  } else if (pass.chunk > 0) {
    needed.push_back({PassKind::forward, pass.microbatch, pass.chunk - 1});
  }
  return needed;
}

/// Lets every stage run its order as early as possible.
class Timetable {
 public:
  explicit Timetable(const PipelineShape& shape) : shape_(shape), ends_(shape, std::nullopt) {
    for (std::int64_t stage = 0; stage < shape.stages; ++stage)
      stages_.push_back({stage_order(shape, stage), 0, 0});
  }

  std::vector<TimedPass> run() {
    bool advanced = true;
    while (std::exchange(advanced, false))
      for (std::int64_t stage = 0; stage < shape_.stages; ++stage)
        while (run_next(stage)) advanced = true;
    for (const Stage& stage : stages_)
      if (stage.next < stage.order.size())
        throw InternalError("the stages of the pipeline wait for each other before " +
                            describe(stage.order[stage.next]));
    return std::move(passes_);
  }

 private:
  struct Stage {
    std::vector<PipelinePass> order;
    std::size_t next;
    std::int64_t free;
  };

  bool run_next(std::int64_t number) {
    Stage& stage = stages_[static_cast<std::size_t>(number)];
    if (stage.next == stage.order.size()) return false;
    const PipelinePass& pass = stage.order[stage.next];
    std::int64_t start = stage.free;
    for (const PipelinePass& needed : needs(shape_, pass)) {
      if (!ends_[needed]) return false;
      start = std::max(start, *ends_[needed]);
    }
    stage.free = start + (pass.kind == PassKind::forward ? 1 : 2);
    ends_[pass] = stage.free;
    passes_.push_back({start, stage.free, number, pass});
    ++stage.next;
    return true;
  }

  PipelineShape shape_;
  PassTable<std::optional<std::int64_t>> ends_;
  std::vector<Stage> stages_;
  std::vector<TimedPass> passes_;
};

}  // namespace

std::string describe(const PipelinePass& pass) {
  return fmt::format("{} of microbatch {} through chunk {}",
                     pass.kind == PassKind::forward ? "forward" : "backward", pass.microbatch, pass.chunk);
}

std::vector<PipelinePass> stage_order(const PipelineShape& shape, std::int64_t stage) {
  check_shape(shape);
  require(stage >= 0 && stage < shape.stages, "the pipeline has no such stage");
  const std::int64_t passes = shape.microbatches * shape.virtual_stages, ahead = warm_up(shape, stage);
  std::vector<PipelinePass> order;
  order.reserve(static_cast<std::size_t>(2 * passes));
  for (std::int64_t number = 0; number < passes + ahead; ++number) {
    if (number < passes) order.push_back(pass_of(shape, stage, PassKind::forward, number));
    if (number >= ahead) order.push_back(pass_of(shape, stage, PassKind::backward, number - ahead));
  }
  return order;
}

std::vector<TimedPass> timetable(const PipelineShape& shape) {
  check_shape(shape);
  return Timetable(shape).run();
}

std::vector<PipelinePass> merged_order(const PipelineShape& shape) {
  std::vector<TimedPass> passes = timetable(shape);
  // A pass starts later than all that it needs, so sorting by start keeps every dependence.
  std::ranges::stable_sort(passes, {},
                           [](const TimedPass& timed) { return std::pair(timed.start, timed.stage); });
  std::vector<PipelinePass> order;
  order.reserve(passes.size());
  for (const TimedPass& timed : passes) order.push_back(timed.pass);
  return order;
}

std::int64_t in_flight(const PipelineShape& shape, std::int64_t stage) {
  std::int64_t now = 0, most = 0;
  for (const PipelinePass& pass : stage_order(shape, stage)) {
    now += pass.kind == PassKind::forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

void check_order(const PipelineShape& shape, std::span<const PipelinePass> order) {
  check_shape(shape);
  PassTable<std::optional<std::size_t>> places(shape, std::nullopt);
  for (std::size_t entry = 0; entry < order.size(); ++entry) {
    const PipelinePass& pass = order[entry];
    if (pass.microbatch < 0 || pass.microbatch >= shape.microbatches || pass.chunk < 0 ||
        pass.chunk >= shape.chunks())
      throw InternalError(
          fmt::format("entry {} of the order, {}, does not exist: there are {} microbatches and {} "
                      "chunks",
                      entry, describe(pass), shape.microbatches, shape.chunks()));
    if (const auto& before = places[pass])
      throw InternalError(fmt::format("entry {} of the order, {}, stood already as entry {}", entry,
                                      describe(pass), *before));
    for (const PipelinePass& needed : needs(shape, pass))
      if (!places[needed])
        throw InternalError(fmt::format("entry {} of the order, {}, comes before {}, which it needs", entry,
                                        describe(pass), describe(needed)));
    places[pass] = entry;
  }
  // Every entry was another pass that exists, so only their number can still be wrong.
  for (std::int64_t microbatch = 0; microbatch < shape.microbatches; ++microbatch)
    for (std::int64_t chunk = 0; chunk < shape.chunks(); ++chunk)
      for (const PassKind kind : {PassKind::forward, PassKind::backward})
        if (const PipelinePass pass{kind, microbatch, chunk}; !places[pass])
          throw InternalError(fmt::format("the order of {} entries lacks {}", order.size(), describe(pass)));
}

}  // namespace encore::model
