// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/error.hpp>
#include <encore/backend/job_watch.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

namespace encore::backend::impl {

/// Runs what may wait for another process for ever, on a thread of its own, and passes on what it throws, or which rank
/// was the reason where the watch, nullptr for none, knows one. When the job fails meanwhile, throws that. Returns whether
/// it was done within `limit`. Else, as after a failure, the thread stays behind, so `work` owns what it needs.
[[nodiscard]] inline bool run_apart(std::function<void()> work, const JobWatch* watch,
                                    std::chrono::milliseconds limit) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (done.wait_for(std::chrono::milliseconds(5)) == std::future_status::timeout) {
    if (watch != nullptr) watch->check();
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  try {
    done.get();
  } catch (const DeviceError&) {
    if (watch != nullptr) watch->explain();
    throw;
  }
  return true;
}

}  // namespace encore::backend::impl
