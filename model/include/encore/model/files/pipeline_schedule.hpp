// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace encore::model {

/// A model cut into stages * virtual_stages chunks of equally many layers. Chunk c is computed by stage
/// c mod stages: chunk 0 begins with the embedding, the last one ends with the head.
struct PipelineShape {
  std::int64_t stages = 1;
  std::int64_t virtual_stages = 1;  ///< chunks of each stage
  std::int64_t microbatches = 1;

  std::int64_t chunks() const { return stages * virtual_stages; }
  std::int64_t stage_of(std::int64_t chunk) const { return chunk % stages; }
};

enum class PassKind { forward, backward };

/// One microbatch's way through one chunk, in one direction.
struct PipelinePass {
  PassKind kind;
  std::int64_t microbatch;
  std::int64_t chunk;

  friend bool operator==(const PipelinePass&, const PipelinePass&) = default;
};

/// `forward of microbatch 3 through chunk 1`
std::string describe(const PipelinePass& pass);

/// The passes of one stage in the order in which it runs them: 1F1B (Narayanan et al., "Efficient large-scale
/// language model training on GPU clusters using Megatron-LM", 2021), interleaved where virtual_stages > 1.
/// A stage first runs its warm-up forwards (the number of stages behind it; interleaved: twice that number and
/// stages * (virtual_stages - 1)), then one forward and one backward by turns, then what is left of backward.
/// Interleaved, a stage changes its chunk after every `stages` microbatches.
/// Throws ConfigurationError unless interleaved microbatches are a multiple of stages, and InternalError unless
/// all numbers are positive, the stage exists, and virtual_stages is 1 where stages is.
std::vector<PipelinePass> stage_order(const PipelineShape& shape, std::int64_t stage);

/// When a pass runs if every stage runs on its own as early as its order and the data allow, forward takes 1 and
/// backward 2, and nothing else takes any time.
struct TimedPass {
  std::int64_t start;
  std::int64_t end;
  std::int64_t stage;
  PipelinePass pass;
};

/// The passes of all stages, those of each in its order. Throws as stage_order does.
std::vector<TimedPass> timetable(const PipelineShape& shape);

/// The passes of all stages in one order for one process: by the time at which each would start if every stage
/// ran on its own as early as its order and the data allow, and backward took twice as long as forward. Throws
/// as stage_order does.
std::vector<PipelinePass> merged_order(const PipelineShape& shape);

/// Most pairs of microbatch and chunk whose forward the stage has run and whose backward it has not.
std::int64_t in_flight(const PipelineShape& shape, std::int64_t stage);

/// Throws InternalError, naming the entry that is wrong, unless the order has every pass exactly once, forward
/// through a chunk after forward through the one before it, and backward through a chunk after its forward and
/// after backward through the one behind it.
void check_order(const PipelineShape& shape, std::span<const PipelinePass> order);

}  // namespace encore::model
