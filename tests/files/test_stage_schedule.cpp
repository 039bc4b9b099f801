// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/stage_schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace encore;
using namespace encore::model;
using Operations = std::vector<StageOperation>;

/// `F0.1 <B0.1 >F0.0`: forward of microbatch 0 through chunk 1, receive and send of results.
std::string shown(const Operations& operations) {
  std::string text;
  for (const StageOperation& operation : operations) {
    const char* direction = operation.kind == StageOperationKind::send      ? ">"
                            : operation.kind == StageOperationKind::receive ? "<"
                                                                            : "";
    text += (text.empty() ? "" : " ") + std::string(direction) +
            (operation.pass.kind == PassKind::forward ? "F" : "B") +
            std::to_string(operation.pass.microbatch) + "." + std::to_string(operation.pass.chunk);
  }
  return text;
}

std::vector<PipelineShape> many_shapes() {
  std::vector<PipelineShape> shapes;
  for (std::int64_t stages = 2; stages <= 8; ++stages)
    for (std::int64_t chunks = 1; chunks <= 4; ++chunks)
      for (std::int64_t microbatches = 1; microbatches <= 16; ++microbatches)
        if (chunks == 1 || microbatches % stages == 0) shapes.push_back({stages, chunks, microbatches});
  return shapes;
}

std::vector<Operations> all_stages(const PipelineShape& shape,
                                   Operations (*of)(const PipelineShape&, std::int64_t)) {
  std::vector<Operations> operations;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) operations.push_back(of(shape, stage));
  return operations;
}

/// When the last pass ends, where forward takes 1, backward 2 and a transfer nothing, though both its ends wait for each
/// other. Transfers come in the order of the lists: between the passes, or beside them.
class Clock {
 public:
  Clock(const PipelineShape& shape, const std::vector<Operations>& operations, bool beside)
      : shape_(shape), beside_(beside) {
    for (const Operations& of : operations) {
      Stage stage;
      for (const StageOperation& operation : of)
        (beside && operation.kind != StageOperationKind::pass ? stage.transfers : stage.line)
            .push_back(operation);
      stages_.push_back(std::move(stage));
    }
  }

  std::int64_t run() {
    bool advanced = true;
    while (std::exchange(advanced, false))
      for (Stage& stage : stages_)
        while (step(stage)) advanced = true;
    std::int64_t last = 0;
    for (const Stage& stage : stages_) {
      REQUIRE(stage.next == stage.line.size());
      REQUIRE(stage.next_transfer == stage.transfers.size());
      last = std::max(last, stage.time);
    }
    return last;
  }

 private:
  struct Stage {
    Operations line, transfers;  ///< transfers beside the line only
    std::size_t next = 0, next_transfer = 0;
    std::int64_t time = 0, transfer_time = 0;
  };
  using Key = std::tuple<PassKind, std::int64_t, std::int64_t>;
  static Key key(const PipelinePass& pass) { return {pass.kind, pass.microbatch, pass.chunk}; }

  bool step(Stage& stage) {
    const bool passed = stage.next < stage.line.size() && step_of_line(stage, stage.line[stage.next]);
    const bool moved = beside_ && stage.next_transfer < stage.transfers.size() &&
                       transfer(stage.transfers[stage.next_transfer].pass);
    return passed || moved;
  }

  bool step_of_line(Stage& stage, const StageOperation& operation) {
    if (operation.kind != StageOperationKind::pass) return transfer(operation.pass);
    const PipelinePass& pass = operation.pass;
    const bool begins = pass.kind == PassKind::forward ? pass.chunk == 0 : pass.chunk + 1 == shape_.chunks();
    if (!begins && !there_.contains(key(pass))) return false;
    if (!begins) stage.time = std::max(stage.time, there_[key(pass)]);
    stage.time += pass.kind == PassKind::forward ? 1 : 2;
    ends_[key(pass)] = stage.time;
    ++stage.next;
    return true;
  }

  bool transfer(const PipelinePass& pass) {
    const PipelinePass reader = *reader_of(shape_, pass);
    Stage& from = stages_[static_cast<std::size_t>(shape_.stage_of(pass.chunk))];
    Stage& to = stages_[static_cast<std::size_t>(shape_.stage_of(reader.chunk))];
    const auto is_next = [&](const Stage& stage, StageOperationKind kind) {
      const auto& [list, next] =
          beside_ ? std::tie(stage.transfers, stage.next_transfer) : std::tie(stage.line, stage.next);
      return next < list.size() && list[next] == StageOperation{kind, pass};
    };
    if (!ends_.contains(key(pass)) || !is_next(from, StageOperationKind::send) ||
        !is_next(to, StageOperationKind::receive))
      return false;
    const auto time_of = [&](Stage& stage) -> std::int64_t& {
      return beside_ ? stage.transfer_time : stage.time;
    };
    const std::int64_t now = std::max({time_of(from), time_of(to), ends_[key(pass)]});
    time_of(from) = time_of(to) = there_[key(reader)] = now;
    for (Stage* stage : {&from, &to}) ++(beside_ ? stage->next_transfer : stage->next);
    return true;
  }

  PipelineShape shape_;
  bool beside_;
  std::vector<Stage> stages_;
  std::map<Key, std::int64_t> ends_, there_;
};

std::int64_t shortest(const PipelineShape& shape) {
  std::int64_t last = 0;
  for (const TimedPass& pass : timetable(shape)) last = std::max(last, pass.end);
  return last;
}

TEST_CASE("1F1B on two stages sends what a pass made behind it and receives before the pass that reads it") {
  CHECK(shown(stage_operations({2, 1, 3}, 0)) ==
        "F0.0 >F0.0 F1.0 >F1.0 <B0.1 B0.0 F2.0 >F2.0 <B1.1 B1.0 <B2.1 B2.0");
  CHECK(shown(stage_operations({2, 1, 3}, 1)) ==
        "<F0.0 F0.1 B0.1 <F1.0 >B0.1 F1.1 B1.1 <F2.0 >B1.1 F2.1 B2.1 >B2.1");
}

TEST_CASE("evaluation hands each microbatch through all chunks") {
  CHECK(shown(forward_operations({2, 2, 1}, 0)) == "F0.0 >F0.0 <F0.1 F0.2 >F0.2");
  CHECK(shown(forward_operations({2, 2, 1}, 1)) == "<F0.0 F0.1 >F0.1 <F0.2 F0.3");
}

TEST_CASE("no shape lets stages wait for each other in a circle, and each keeps the order of its passes") {
  const std::vector<PipelineShape> shapes = many_shapes();
  CHECK(shapes.size() > 150);
  for (const PipelineShape& shape : shapes) {
    CAPTURE(shape.stages);
    CAPTURE(shape.virtual_stages);
    CAPTURE(shape.microbatches);
    const auto operations = all_stages(shape, stage_operations);
    REQUIRE_NOTHROW(check_operations(shape, operations));
    REQUIRE_NOTHROW(check_operations(shape, all_stages(shape, forward_operations)));
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
      std::vector<PipelinePass> passes;
      for (const StageOperation& operation : operations[static_cast<std::size_t>(stage)])
        if (operation.kind == StageOperationKind::pass) passes.push_back(operation.pass);
      REQUIRE(passes == stage_order(shape, stage));
    }
  }
}

TEST_CASE("transfers beside the passes delay nothing; between them they delay no plain 1F1B") {
  for (const PipelineShape& shape : many_shapes()) {
    CAPTURE(shape.stages);
    CAPTURE(shape.virtual_stages);
    CAPTURE(shape.microbatches);
    const auto operations = all_stages(shape, stage_operations);
    const std::int64_t best = shortest(shape);
    REQUIRE(Clock(shape, operations, true).run() == best);
    const std::int64_t between = Clock(shape, operations, false).run();
    if (shape.virtual_stages == 1)
      REQUIRE(between == best);
    else
      REQUIRE(between * 5 <= best * 8);
  }
}

TEST_CASE("lists that would hang, or that compute something wrong, are told by what is wrong") {
  const PipelineShape shape{2, 1, 2};
  const auto lists = all_stages(shape, stage_operations);
  const auto told = [&](std::vector<Operations> changed) {
    try {
      check_operations(shape, changed);
    } catch (const InternalError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(told(lists) == "");
  const auto place = [](const Operations& list, const std::string& what) {
    return std::ranges::find_if(list, [&](const StageOperation& one) { return shown({one}) == what; }) -
           list.begin();
  };
  auto crossed = lists;  // Sends its gradient before it takes the activation that the other one is sending.
  std::swap(crossed[1][static_cast<std::size_t>(place(crossed[1], "<F1.0"))],
            crossed[1][static_cast<std::size_t>(place(crossed[1], ">B0.1"))]);
  CHECK(told(crossed) ==
        "the stages of the pipeline wait for each other: stage 0 before send of forward of microbatch 1 "
        "through "
        "chunk 0, stage 1 before send of backward of microbatch 0 through chunk 1");
  auto early = lists;
  std::swap(early[0][0], early[0][1]);
  CHECK(told(early).find("send of forward of microbatch 0 through chunk 0 comes before the pass") !=
        std::string::npos);
  auto lacking = lists;
  lacking[1].pop_back();
  CHECK(told(lacking).find("stage 0 before receive of backward of microbatch 1 through chunk 1") !=
        std::string::npos);
  auto unread = lists;
  unread[1].erase(unread[1].begin());
  CHECK(told(unread) == "stage 1: forward of microbatch 0 through chunk 1 comes before what it reads");
  auto twice = lists;
  twice[0].insert(twice[0].begin(), twice[0][0]);
  CHECK(told(twice) == "stage 0: forward of microbatch 0 through chunk 0 is there twice");
  auto foreign = lists;
  foreign[1].push_back({StageOperationKind::pass, {PassKind::forward, 0, 0}});
  CHECK(told(foreign) == "stage 1: forward of microbatch 0 through chunk 0 is not its own");
}

}  // namespace
