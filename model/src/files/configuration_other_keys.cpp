// SPDX-License-Identifier: Apache-2.0
#include "configuration_keys.hpp"

namespace encore::model {
namespace {

Key graph_modules_key() {
  return list<&Configuration::graph, &GraphConfiguration::modules>(
      {.name = "graph.modules",
       .fallback = "none: whole layers",
       .help = "parts of a layer that graph.impl = layer records",
       .refusal = GraphRule::unknown_module,
       .repetition = GraphRule::repeated_module});
}

Key graph_buckets_key() {
  return {.name = "graph.buckets",
          .kind = KeyKind::wholes,
          .range = {.minimum = 1, .maximum = 1 << 24},
          .fallback = "none: each length is recorded as it comes",
          .help = "sequence lengths that are recorded; a shorter sequence is padded to the next of them",
          .assign =
              [](Configuration& configuration, const Value& value) {
                configuration.graph.buckets = std::get<std::vector<std::int64_t>>(value);
                std::ranges::sort(configuration.graph.buckets);
              },
          .read = [](const Configuration& configuration) { return Value(configuration.graph.buckets); }};
}

}  // namespace

std::vector<Key> other_keys() {
  constexpr auto graph = &Configuration::graph;
  using Graph = GraphConfiguration;
  constexpr auto parallel = &Configuration::parallel;
  using Parallel = ParallelConfiguration;
  constexpr double most_bytes = 1LL << 60;
  return {
      choice<graph, &Graph::impl>({.name = "graph.impl",
                                   .fallback = "full_iteration",
                                   .help = "what is recorded and replayed",
                                   .refusal = GraphRule::unknown_implementation}),
      graph_modules_key(),
      named<graph, &Graph::optimizer>("graph.optimizer", "joined, separate or eager as graph.impl allows",
                                      "where the optimizer is recorded"),
      whole<graph, &Graph::warmup_steps>("graph.warmup_steps", from(0, 1e6), "3",
                                         "steps that run eagerly before anything is recorded"),
      whole<graph, &Graph::validate_every>(
          "graph.validate_every", from(0, most_steps), "0",
          "every so many steps a replay is compared with an eager run; 0: never"),
      plain<graph, &Graph::memory_limit>(
          {.name = "graph.memory_limit",
           .kind = KeyKind::bytes,
           .range = from(0, most_bytes),
           .fallback = "0",
           .help = "most device memory, refused before capture if too little; 0: any"}),
      truth<graph, &Graph::recapture>(
          "graph.recapture", "false",
          "record anew, instead of an error, when a replay would not fit any more"),
      graph_buckets_key(),
      named<graph, &Graph::above_largest>("graph.above_largest", "eager",
                                          "what happens to a sequence longer than the largest bucket"),
      whole<graph, &Graph::recordings>("graph.recordings", from(1, 4096), "8",
                                       "most lengths that are recorded; others run eagerly"),
      truth<graph, &Graph::checksums>(
          "graph.checksums", "false",
          "keep checksums at the boundary of every segment, so that the first bad one of a step is known; "
          "rows of experts, of which only the device knows which are used, are not checked"),
      whole<parallel, &Parallel::data>("parallel.data", from(1, 1 << 20), "1",
                                       "ranks that each train on batches of their own; train.microbatch and "
                                       "train.microbatches count for one"),
      whole<parallel, &Parallel::tensor>("parallel.tensor", from(1, 1 << 16), "1",
                                         "ranks that each have a part of every layer's heads, inner widths "
                                         "and vocabulary"),
      truth<parallel, &Parallel::sequence>("parallel.sequence", "false",
                                           "tensor ranks deal the tokens out among each other where layers "
                                           "work on each token by itself"),
      whole<parallel, &Parallel::expert>(
          "parallel.expert", from(1, 1 << 16), "1",
          "ranks that each have a part of the experts; they are neighbours among the data ranks"),
      named<parallel, &Parallel::expert_dispatch>("parallel.expert_dispatch", "all_to_all",
                                                  "how tokens come to experts of other ranks: each choice to "
                                                  "its expert's rank, or every token to all of them"),
      truth<parallel, &Parallel::shard_optimizer>(
          "parallel.shard_optimizer", "false",
          "each data rank keeps and updates its part of moments and master weights (ZeRO, stage 1)"),
      whole<parallel, &Parallel::pipeline>(
          "parallel.pipeline", from(1, 64), "1",
          "pipeline stages; in one process they run in turn, in the order of their schedule"),
      whole<parallel, &Parallel::virtual_stages>("parallel.virtual_stages", from(1, 64), "1",
                                                 "chunks of layers that a pipeline stage takes in turn"),
      named<&Configuration::backend>("backend", "openmp", "where kernels run"),
      whole<&Configuration::seed>("seed", from(0, 9007199254740992.0), "1",
                                  "of weights, dropout and the order of the data")};
}

}  // namespace encore::model
