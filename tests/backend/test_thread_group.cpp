// SPDX-License-Identifier: Apache-2.0
// Whose data it is while ranks of a group of threads fail.
#include <encore/backend/error.hpp>

#include "../../backend/src/thread_group.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace {

using namespace encore;
using namespace encore::backend;
using namespace encore::backend::impl;
using namespace std::chrono_literals;

ThreadCall call_of(ThreadCallKind kind) {
  return {.kind = kind, .send = nullptr, .receive = nullptr, .count = 1, .type = DataType::float32};
}

/// Two groups of two ranks each in a job of four.
struct TwoGroups {
  std::shared_ptr<ThreadJob> job = std::make_shared<ThreadJob>(1min);
  ThreadGroup world{job, "world", "world", {0, 1, 2, 3}};
  ThreadGroup first{job, "tensor", "world", {0, 1}};
  ThreadGroup second{job, "tensor", "world", {2, 3}};

  /// Rank 3 is gone, and rank 2 notices.
  void fail() {
    second.leave(1);
    CHECK_THROWS_AS(second.together(0, call_of(ThreadCallKind::broadcast), [](const auto&) {}),
                    CommunicationError);
  }
};

TEST_CASE("a rank keeps its data until the others have done with it, when the job fails meanwhile") {
  TwoGroups groups;
  std::atomic<bool> copying = false, failed = false, gone = false, too_early = false;
  std::atomic<int> thrown = 0;
  const auto rank = [&](int number, const auto& work) {
    try {
      groups.first.together(number, call_of(ThreadCallKind::all_reduce), work);
    } catch (const Error&) {
      ++thrown;
    }
  };
  const auto copy_slowly = [&](const auto&) {
    copying = true;
    while (!failed) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(100ms);
    too_early = gone.load();
  };
  std::thread slow([&] { rank(1, copy_slowly); });
  SUBCASE("it is done with its own part") {
    std::thread quick([&] {
      rank(0, [&](const auto&) {
        while (!failed) std::this_thread::sleep_for(1ms);
      });
      gone = true;
    });
    while (!copying) std::this_thread::sleep_for(1ms);
    groups.fail();
    failed = true;
    quick.join();
    slow.join();
  }
  SUBCASE("it waits for the others") {
    std::thread quick([&] {
      rank(0, [](const auto&) {});
      gone = true;
    });
    while (!copying) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);
    groups.fail();
    failed = true;
    quick.join();
    slow.join();
  }
  SUBCASE("its own part fails") {
    std::thread quick([&] {
      rank(0, [&](const auto&) {
        while (!copying) std::this_thread::sleep_for(1ms);
        failed = true;
        throw OutOfMemoryError("no room for a sum");
      });
      gone = true;
    });
    quick.join();
    slow.join();
  }
  CHECK(thrown == 2);
  CHECK(!too_early);
}

}  // namespace
