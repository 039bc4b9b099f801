// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/pipeline_schedule.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace encore::model {

enum class StageOperationKind { pass, send, receive };

/// What a stage of a pipeline does that is computed by several ranks: a pass, or its part of the transfer of a pass'
/// result to the stage that needs it.
struct StageOperation {
  StageOperationKind kind;
  PipelinePass pass;  ///< of a transfer: the one whose result is handed on

  friend bool operator==(const StageOperation&, const StageOperation&) = default;
};

/// `send of forward of microbatch 3 through chunk 1`
std::string describe(const StageOperation& operation);

/// The pass that reads the result of another one in another chunk; nothing behind the last forward and the last backward.
std::optional<PipelinePass> reader_of(const PipelineShape& shape, const PipelinePass& pass);

/// The operations of one stage: its passes in stage_order(), and between them its transfers. All stages have their
/// transfers in one order, by the time at which timetable() has the results ready. A send follows the pass whose result
/// it hands on; a receive comes as late as this order allows, before the pass that reads it or before a send whose result
/// is ready later. So two stages that wait for each other's end of a transfer never do so in a circle, whatever
/// else they do between transfers. Where transfers run beside the passes, they delay none: each begins at its time.
/// Throws as stage_order does.
std::vector<StageOperation> stage_operations(const PipelineShape& shape, std::int64_t stage);

/// The same without backward: each microbatch goes through all chunks before the next. Any number of microbatches.
std::vector<StageOperation> forward_operations(const PipelineShape& shape, std::int64_t stage);

/// Runs the operations of all stages, where a send and its receive end together. Throws InternalError that names what
/// each stage is stuck before, or the operation that is missing, not the stage's own, or before what it needs.
void check_operations(const PipelineShape& shape,
                      std::span<const std::vector<StageOperation>> operations_of_stages);

}  // namespace encore::model
