// SPDX-License-Identifier: Apache-2.0
// What may wait for another process for ever, as NCCL's beginning and end of a group.
#include <encore/backend/error.hpp>

#include "../../backend/src/run_apart.hpp"
#include "job_processes.hpp"
#include "temporary_folder.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>

namespace {

using namespace encore;
using namespace encore::backend;
using namespace encore::tests;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

void sleep_for_ever() {
  while (true) std::this_thread::sleep_for(1s);
}

/// Waits until told, as for a rank that does not come.
struct Stuck {
  std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);

  ~Stuck() { *over = true; }
  std::function<void()> work() const {
    return [told = over] {
      while (!*told) std::this_thread::sleep_for(1ms);
    };
  }
};

TEST_CASE("work that runs apart is waited for no longer than stated") {
  bool done = false;
  CHECK(impl::run_apart([&] { done = true; }, nullptr, 1min));
  CHECK(done);
  const Stuck stuck;
  const auto start = Clock::now();
  CHECK(!impl::run_apart(stuck.work(), nullptr, 50ms));
  CHECK(Clock::now() - start < 30s);
  CHECK_THROWS_WITH_AS((void)impl::run_apart([] { throw DeviceError("no such GPU"); }, nullptr, 1min),
                       "no such GPU", DeviceError);
}

TEST_CASE("work that runs apart and waits for a rank that ends names that rank") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](JobWatch&) { sleep_for_ever(); });
  const std::string name = "rank 1 (process " + std::to_string(other.id());
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
  std::string sentence;
  const auto run = [&](std::function<void()> work) {
    try {
      (void)impl::run_apart(std::move(work), &watch, 1min);
    } catch (const CommunicationError& error) {
      sentence = error.what();
    }
  };
  SUBCASE("it goes on waiting") {
    const Stuck stuck;
    other.kill();
    run(stuck.work());
  }
  SUBCASE("it fails by what that rank's end has done to it") {
    other.kill();
    run([] { throw DeviceError("joining 'world': NCCL says remote process exited"); });
  }
  CHECK(sentence.starts_with(name));
}

TEST_CASE("work that fails by itself says so in its own words") {
  TemporaryFolder folder;
  JobPatience patience = quick();
  patience.explaining = 50ms;
  Process other(folder.path(), 1, 2, quick(), [](JobWatch&) { sleep_for_ever(); });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, patience);
  const auto start = Clock::now();
  CHECK_THROWS_WITH_AS((void)impl::run_apart([] { throw DeviceError("no such GPU"); }, &watch, 1min),
                       "no such GPU", DeviceError);
  CHECK(Clock::now() - start < 1500ms);
}

}  // namespace
