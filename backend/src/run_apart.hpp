// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/error.hpp>
#include <encore/backend/job_watch.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

namespace encore::backend::impl {

/// Runs what may wait for another process for ever, on a thread of its own, and passes on what it throws. When the job
/// fails meanwhile, throws that; after `limit` CommunicationError, whose sentence begins with `what`. The thread then
/// stays behind, so `work` owns what it needs.
inline void run_apart(std::function<void()> work, const JobWatch& watch, std::chrono::milliseconds limit,
                      const std::string& what) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (done.wait_for(std::chrono::milliseconds(5)) == std::future_status::timeout) {
    watch.check();
    if (std::chrono::steady_clock::now() > deadline)
      throw CommunicationError(what + " was not done after " + std::to_string(limit.count() / 1000) + " s");
  }
  done.get();
}

}  // namespace encore::backend::impl
