// SPDX-License-Identifier: Apache-2.0
// Ranks that come to a folder: of jobs of different sizes, and of jobs of the same name, one after the other.
#include <encore/backend/error.hpp>
#include <encore/backend/job_watch.hpp>

#include "../../backend/src/rank_file.hpp"
#include "job_processes.hpp"
#include "temporary_folder.hpp"

#include <doctest/doctest.h>

#include <barrier>
#include <thread>

namespace {

using namespace encore;
using namespace encore::backend;
using namespace encore::tests;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST_CASE("ranks that know different sizes of their job are told both at once") {
  for (const int rank : {0, 1}) {
    TemporaryFolder folder;
    const int other_rank = 1 - rank;
    Process other(folder.path(), other_rank, 3, quick(), [](JobWatch&) {});
    const std::string id = std::to_string(other.id());
    const auto start = Clock::now();
    std::string sentence;
    try {
      const JobWatch watch(meeting_of(folder.path()), rank, 2, {}, quick());
    } catch (const CommunicationError& error) {
      sentence = error.what();
    }
    CHECK(Clock::now() - start < 30s);
    // Whichever has seen the other first, each names both.
    CHECK(sentence.find("of a job of ") != std::string::npos);
    CHECK(sentence.find("process " + id) != std::string::npos);
    CHECK(sentence.find("process " + std::to_string(::getpid())) != std::string::npos);
    CHECK(sentence.find("WORLD_SIZE") != std::string::npos);
    other.wait();
    CHECK(read_bytes(folder / ("error-" + std::to_string(other_rank))).find("of a job of ") !=
          std::string::npos);
  }
}

TEST_CASE("a file that an earlier job's last rank has removed with its own is written again") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](JobWatch&) { std::this_thread::sleep_for(1h); });
  const auto file = meeting_of(folder.path()) / "rank-1";
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(1ms);
  std::error_code ignored;  // What is written again meanwhile stays.
  SUBCASE("while it joins") { std::filesystem::remove_all(meeting_of(folder.path()), ignored); }
  SUBCASE("later") {}
  const auto start = Clock::now();
  const JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
  CHECK(Clock::now() - start < 30s);
  std::filesystem::remove(file, ignored);
  while (!std::filesystem::exists(file) && Clock::now() - start < 30s) std::this_thread::sleep_for(1ms);
  CHECK(std::filesystem::exists(file));
  CHECK_NOTHROW(watch.check());
}

TEST_CASE("the last rank to leave removes no file of another job") {
  TemporaryFolder folder;
  const auto file = meeting_of(folder.path()) / "rank-1";
  {
    Process other(folder.path(), 1, 2, quick(), [](JobWatch&) {});
    const JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
    other.wait();
    std::this_thread::sleep_for(200ms);
    auto next = impl::RankFile::of_this_process();
    next.state = impl::RankState::left;
    next.write(file);
    std::this_thread::sleep_for(200ms);
    CHECK_NOTHROW(watch.check());
  }
  CHECK(std::filesystem::exists(file));
  CHECK(!std::filesystem::exists(meeting_of(folder.path()) / "rank-0"));
}

TEST_CASE("a rank that is in the next job of the same name already fails nobody in this one") {
  TemporaryFolder folder;
  constexpr int jobs = 5;
  std::barrier joined(2);  // As the making of NCCL's group is.
  std::jthread other([&] {
    for (int job = 0; job < jobs; ++job) {
      const JobWatch watch(meeting_of(folder.path()), 1, 2, {}, quick());
      joined.arrive_and_wait();
    }
  });
  for (int job = 0; job < jobs; ++job) {
    const JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
    joined.arrive_and_wait();
    std::this_thread::sleep_for(100ms);
    CHECK_NOTHROW(watch.check());
  }
}

}  // namespace
