// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/trainer.hpp>

#include <cstdint>
#include <functional>

#include "console.hpp"

namespace encore::command {

/// One of the ranks that train together.
struct Seat {
  model::RankGroups groups = {};
  std::int64_t rank = 0;
  std::int64_t data_rank = 0;
  bool is_thread = false;  ///< of a process that has all ranks

  /// Writes files and tells what happens.
  bool speaks() const { return rank == 0; }
};

/// Runs `body` as the ranks that a configuration asks for: in the processes of a job that torchrun, mpirun or srun has
/// started, each of which calls this and gets the result of its own; without such a job, on hosts, in a thread for each rank
/// (stages of a pipeline are then computed in turn), with the result of rank 0. Ranks other than 0 get a silent console.
/// Kokkos runs while `body` does, unless the configuration asks for one rank. A rank that throws ends all.
///
/// Throws ConfigurationError for a job of another size, and without a job for several GPUs; what joining a job throws.
int on_ranks(const model::Configuration& configuration, int threads, Console& console,
             const std::function<int(const Seat&, Console&)>& body);

}  // namespace encore::command
