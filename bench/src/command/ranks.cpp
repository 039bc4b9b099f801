// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/job.hpp>
#include <encore/backend/thread_transport.hpp>
#include <encore/model/files/rank_layout.hpp>

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "../device/session.hpp"

namespace encore::command {

namespace {

using Body = std::function<int(const Seat&, Console&)>;

/// The first of the errors that is not about another rank's end.
std::exception_ptr first_cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr first;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    if (!first) first = error;
    try {
      std::rethrow_exception(error);
    } catch (const CommunicationError&) {
      continue;
    } catch (...) {
      return error;
    }
  }
  return first;
}

int on_threads(const model::Configuration& configuration, std::int64_t ranks, Console& console,
               const Body& body) {
  auto worlds = backend::thread_transports("world", static_cast<int>(ranks), std::chrono::minutes(10));
  std::vector<std::exception_ptr> errors(worlds.size());
  std::vector<int> codes(worlds.size());
  model::ParallelConfiguration parallel = configuration.parallel;
  parallel.pipeline = parallel.virtual_stages = 1;  // In turn.
  const auto run = [&](std::size_t rank) {
    try {
      Console silent(Console::Voice::silent);
      const Seat seat{model::make_rank_groups(worlds[rank], parallel), static_cast<std::int64_t>(rank),
                      model::RankLayout(parallel, false).place_of(static_cast<std::int64_t>(rank)).data,
                      true};
      codes[rank] = body(seat, rank == 0 ? console : silent);
    } catch (...) {
      errors[rank] = std::current_exception();
      worlds[rank]->close();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 1; rank < worlds.size(); ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (const std::exception_ptr error = first_cause(errors)) std::rethrow_exception(error);
  return codes[0];
}

int in_job(const model::Configuration& configuration, const backend::ProcessRank& process, Console& console,
           const Body& body) {
  const bool on_gpu = configuration.backend == model::BackendKind::cuda;
  backend::Job job = on_gpu ? backend::join_gpu_job(process) : backend::join_host_job(process);
  const model::RankLayout layout(configuration.parallel, true);
  const Seat seat{model::make_rank_groups(job.world, configuration.parallel), process.rank,
                  layout.place_of(process.rank).data};
  Console silent(Console::Voice::silent);
  return body(seat, seat.speaks() ? console : silent);
}

}  // namespace

int on_ranks(const model::Configuration& configuration, int threads, Console& console, const Body& body) {
  const model::ParallelConfiguration& parallel = configuration.parallel;
  const std::int64_t ranks = parallel.data * parallel.tensor;
  const backend::ProcessRank process = backend::process_rank();
  if (!process.alone()) {
    const std::int64_t wanted = model::RankLayout(parallel, true).ranks();
    if (wanted != process.size)
      throw ConfigurationError(fmt::format(
          "{} has started {} processes, but parallel.data = {}, parallel.tensor = {} and parallel.pipeline = "
          "{} "
          "make {}: start as many, or set them so",
          process.launcher, process.size, parallel.data, parallel.tensor, parallel.pipeline, wanted));
    const DeviceSession session(threads, process);
    return in_job(configuration, process, console, body);
  }
  if (ranks == 1) return body({}, console);
  if (configuration.backend == model::BackendKind::cuda)
    throw ConfigurationError(
        fmt::format("parallel.data = {} and parallel.tensor = {} need a process for each GPU: start {} by "
                    "torchrun, mpirun or "
                    "srun, as in torchrun --no-python --nproc-per-node {} encore train ...",
                    parallel.data, parallel.tensor, ranks, ranks));
  const DeviceSession session(threads);
  return on_threads(configuration, ranks, console, body);
}

}  // namespace encore::command
