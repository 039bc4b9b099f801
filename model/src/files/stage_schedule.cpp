// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/stage_schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

namespace encore::model {
namespace {

using enum StageOperationKind;

std::tuple<PassKind, std::int64_t, std::int64_t> key_of(const PipelinePass& pass) {
  return {pass.kind, pass.microbatch, pass.chunk};
}

/// Puts the transfers in which a stage takes part between its passes. `transfers` of all stages, in their order.
std::vector<StageOperation> with_transfers(const PipelineShape& shape, std::int64_t stage,
                                           const std::vector<PipelinePass>& passes,
                                           const std::vector<PipelinePass>& transfers) {
  std::vector<StageOperation> own;
  for (const PipelinePass& pass : transfers) {
    if (shape.stage_of(pass.chunk) == stage)
      own.push_back({send, pass});
    else if (shape.stage_of(reader_of(shape, pass)->chunk) == stage)
      own.push_back({receive, pass});
  }
  std::vector<StageOperation> operations;
  auto next = own.begin();
  const auto append_up_to = [&](const StageOperation& last) {
    const auto found = std::find(next, own.end(), last);
    if (found == own.end()) return;  // Already there.
    operations.insert(operations.end(), next, found + 1);
    next = found + 1;
  };
  for (const PipelinePass& pass : passes) {
    for (const StageOperation& transfer : own)
      if (transfer.kind == receive && reader_of(shape, transfer.pass) == pass) append_up_to(transfer);
    operations.push_back({StageOperationKind::pass, pass});
    append_up_to({send, pass});
  }
  return operations;
}

/// Runs the operations of all stages as far as they come.
class Rendezvous {
 public:
  Rendezvous(const PipelineShape& shape, std::span<const std::vector<StageOperation>> operations)
      : shape_(shape), operations_(operations), next_(operations.size(), 0) {}

  void run() {
    bool advanced = true;
    while (std::exchange(advanced, false))
      for (std::size_t stage = 0; stage < operations_.size(); ++stage)
        while (run_next(stage)) advanced = true;
    std::string stuck;
    for (std::size_t stage = 0; stage < operations_.size(); ++stage)
      if (const StageOperation* operation = current(stage))
        stuck += fmt::format("{}stage {} before {}", stuck.empty() ? "" : ", ", stage, describe(*operation));
    if (!stuck.empty()) throw InternalError("the stages of the pipeline wait for each other: " + stuck);
    if (done_.size() != static_cast<std::size_t>(passes_))
      throw InternalError(
          fmt::format("the stages have run {} different passes of {}", done_.size(), passes_));
  }

  void expect(std::int64_t passes) { passes_ = passes; }

 private:
  const StageOperation* current(std::size_t stage) const {
    return next_[stage] < operations_[stage].size() ? &operations_[stage][next_[stage]] : nullptr;
  }

  void require_here(bool condition, std::size_t stage, const StageOperation& operation, const char* what) {
    if (!condition) throw InternalError(fmt::format("stage {}: {} {}", stage, describe(operation), what));
  }

  bool run_next(std::size_t stage) {
    const StageOperation* operation = current(stage);
    if (operation == nullptr) return false;
    const auto reader = reader_of(shape_, operation->pass);
    if (operation->kind == pass) {
      run_pass(stage, *operation);
      ++next_[stage];
      return true;
    }
    require_here(reader.has_value(), stage, *operation, "has nobody who reads it");
    const auto sender = static_cast<std::size_t>(shape_.stage_of(operation->pass.chunk)),
               receiver = static_cast<std::size_t>(shape_.stage_of(reader->chunk));
    require_here(stage == (operation->kind == send ? sender : receiver), stage, *operation, "is not its own");
    const StageOperation *first = current(sender), *second = current(receiver);
    if (first == nullptr || second == nullptr || *first != StageOperation{send, operation->pass} ||
        *second != StageOperation{receive, operation->pass})
      return false;
    require_here(done_.contains(key_of(operation->pass)), sender, *first, "comes before the pass");
    received_.insert(key_of(*reader));
    ++next_[sender];
    ++next_[receiver];
    return true;
  }

  void run_pass(std::size_t stage, const StageOperation& operation) {
    const PipelinePass& own = operation.pass;
    require_here(static_cast<std::size_t>(shape_.stage_of(own.chunk)) == stage, stage, operation,
                 "is not its own");
    const bool begins = own.kind == PassKind::forward ? own.chunk == 0 : own.chunk + 1 == shape_.chunks();
    require_here(begins || received_.contains(key_of(own)), stage, operation, "comes before what it reads");
    require_here(
        own.kind == PassKind::forward || done_.contains({PassKind::forward, own.microbatch, own.chunk}),
        stage, operation, "comes before its forward");
    require_here(done_.insert(key_of(own)).second, stage, operation, "is there twice");
  }

  PipelineShape shape_;
  std::span<const std::vector<StageOperation>> operations_;
  std::vector<std::size_t> next_;
  std::set<std::tuple<PassKind, std::int64_t, std::int64_t>> done_, received_;
  std::int64_t passes_ = 0;
};

}  // namespace

std::string describe(const StageOperation& operation) {
  constexpr std::array<const char*, 3> what{"", "send of ", "receive of "};
  return what[static_cast<std::size_t>(operation.kind)] + describe(operation.pass);
}

std::optional<PipelinePass> reader_of(const PipelineShape& shape, const PipelinePass& pass) {
  const std::int64_t chunk = pass.kind == PassKind::forward ? pass.chunk + 1 : pass.chunk - 1;
  if (shape.stages == 1 || chunk < 0 || chunk >= shape.chunks()) return std::nullopt;
  return PipelinePass{pass.kind, pass.microbatch, chunk};
}

std::vector<StageOperation> stage_operations(const PipelineShape& shape, std::int64_t stage) {
  std::vector<TimedPass> timed = timetable(shape);
  // Any order among those that end at the same time would do, if only it is the same on all stages.
  std::ranges::stable_sort(timed, {}, [](const TimedPass& of) {
    return std::tuple(of.end, of.pass.kind == PassKind::backward, of.stage);
  });
  std::vector<PipelinePass> transfers;
  for (const TimedPass& of : timed)
    if (reader_of(shape, of.pass)) transfers.push_back(of.pass);
  return with_transfers(shape, stage, stage_order(shape, stage), transfers);
}

std::vector<StageOperation> forward_operations(const PipelineShape& shape, std::int64_t stage) {
  std::vector<PipelinePass> passes, transfers;
  for (std::int64_t microbatch = 0; microbatch < shape.microbatches; ++microbatch)
    for (std::int64_t chunk = 0; chunk < shape.chunks(); ++chunk) {
      const PipelinePass pass{PassKind::forward, microbatch, chunk};
      if (shape.stage_of(chunk) == stage) passes.push_back(pass);
      if (reader_of(shape, pass)) transfers.push_back(pass);
    }
  return with_transfers(shape, stage, passes, transfers);
}

void check_operations(const PipelineShape& shape,
                      std::span<const std::vector<StageOperation>> operations_of_stages) {
  require(static_cast<std::int64_t>(operations_of_stages.size()) == shape.stages,
          "every stage of the pipeline has a list of operations");
  const bool backward = std::ranges::any_of(operations_of_stages, [](const auto& operations) {
    return std::ranges::any_of(operations, [](const StageOperation& operation) {
      return operation.pass.kind == PassKind::backward;
    });
  });
  Rendezvous rendezvous(shape, operations_of_stages);
  rendezvous.expect(shape.microbatches * shape.chunks() * (backward ? 2 : 1));
  rendezvous.run();
}

}  // namespace encore::model
