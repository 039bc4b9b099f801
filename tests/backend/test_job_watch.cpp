// SPDX-License-Identifier: Apache-2.0
// Processes of a job, as they come, go and die: forked ones where a death is needed, else threads.
#include <encore/backend/error.hpp>
#include <encore/backend/job_watch.hpp>
#include <encore/backend/watched_wait.hpp>

#include "../../backend/src/rank_file.hpp"
#include "job_processes.hpp"
#include "temporary_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

namespace {

using namespace encore;
using namespace encore::backend;
using namespace encore::tests;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Until rank 0 is through with joining.
void wait_for_the_first(const TemporaryFolder& folder) {
  while (true) {
    const auto file = impl::RankFile::read(meeting_of(folder.path()) / "rank-0");
    if (file && file->beat > 0) return;
    std::this_thread::sleep_for(1ms);
  }
}

void sleep_for_ever() {
  while (true) std::this_thread::sleep_for(1s);
}

/// What the watch throws, within a time that is far beyond what is promised.
std::string failure_of(const JobWatch& watch) {
  const auto deadline = Clock::now() + 30s;
  try {
    while (Clock::now() < deadline) {
      watch.check();
      std::this_thread::sleep_for(1ms);
    }
  } catch (const CommunicationError& error) {
    return error.what();
  }
  return "";
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes;
  for (const char letter : text) bytes.push_back(static_cast<std::byte>(letter));
  return bytes;
}

std::string host() { return impl::RankFile::of_this_process().host; }

TEST_CASE("ranks that join are brought what rank 0 offers, whatever lies there of earlier jobs") {
  TemporaryFolder folder;
  for (const std::string offer : {"first", "second"}) {
    Process second(folder.path(), 1, 3, quick(), [&](JobWatch& watch) {
      if (watch.offer() != bytes_of(offer)) throw InternalError("another offer");
      sleep_for_ever();
    });
    Process third(folder.path(), 2, 3, quick(), [&](JobWatch& watch) {
      if (watch.offer() != bytes_of(offer)) throw InternalError("another offer");
      sleep_for_ever();
    });
    JobWatch first(meeting_of(folder.path()), 0, 3, bytes_of(offer), quick());
    CHECK(first.size() == 3);
    std::this_thread::sleep_for(100ms);
    CHECK(!std::filesystem::exists(folder.path() / "error-1"));
    CHECK(!std::filesystem::exists(folder.path() / "error-2"));
    CHECK_NOTHROW(first.check());
    // Their files stay behind, those of processes that were killed.
    third.kill();
    second.kill();
    (void)failure_of(first);
  }
}

TEST_CASE("a process that is killed is named to the others at once, with its step") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](JobWatch& watch) {
    watch.progress(7);
    sleep_for_ever();
  });
  const std::string id = std::to_string(other.id());
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
  while (contents(meeting_of(folder.path()) / "rank-1").find("step=7") == std::string::npos)
    std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(100ms);
  CHECK_NOTHROW(watch.check());
  const auto start = Clock::now();
  other.kill();
  CHECK(failure_of(watch) ==
        "rank 1 (process " + id + " on '" + host() + "') has ended in step 7; its own output may say why");
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE("all ranks name the one that was the reason") {
  TemporaryFolder folder;
  JobPatience slow = quick();
  slow.beat = 150ms;  // sees the second's failure before it looks at the third
  const auto wait = [](JobWatch& watch) {
    while (true) {
      watch.check();
      std::this_thread::sleep_for(1ms);
    }
  };
  Process second(folder.path(), 1, 4, quick(), wait), third(folder.path(), 2, 4, slow, wait);
  Process last(folder.path(), 3, 4, quick(), [](JobWatch&) { sleep_for_ever(); });
  JobWatch watch(meeting_of(folder.path()), 0, 4, {}, quick());
  std::this_thread::sleep_for(200ms);
  last.kill();
  const std::string sentence = failure_of(watch);
  CHECK(sentence.starts_with("rank 3 (process "));
  second.wait();
  third.wait();
  CHECK(contents(folder.path() / "error-1") == sentence);
  CHECK(contents(folder.path() / "error-2") == sentence);
}

TEST_CASE("what waits for a rank that has ended is made to return") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](JobWatch&) { sleep_for_ever(); });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  int ends = 0;
  const auto guard = watch.guard({nullptr, [&] {
                                    const std::lock_guard lock(mutex);
                                    ended = true;
                                    ++ends;
                                    changed.notify_all();
                                  }});
  (void)watch.guard({nullptr, [&] { ends += 10; }});  // guarded no longer
  other.kill();
  {
    std::unique_lock lock(mutex);
    CHECK(changed.wait_for(lock, 30s, [&] { return ended; }));
  }
  std::this_thread::sleep_for(100ms);
  CHECK(ends == 1);
  CHECK_THROWS_AS(watch.check(), CommunicationError);
}

TEST_CASE("an operation that breaks by itself fails the job after a while, unless a rank's end explains it") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](JobWatch&) { sleep_for_ever(); });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
  SUBCASE("it broke") {
    const auto guard = watch.guard({[] { return std::string("the group 'data' broke"); }, nullptr});
    CHECK(failure_of(watch) == "rank 0: the group 'data' broke");
  }
  SUBCASE("a rank ended") {
    const auto guard = watch.guard({[] { return std::string("the group 'data' broke"); }, nullptr});
    other.kill();
    CHECK(failure_of(watch).starts_with("rank 1 (process "));
  }
  SUBCASE("a call failed") {
    other.kill();
    CHECK_THROWS_AS(watch.explain(), CommunicationError);
  }
}

TEST_CASE("what a rank does to operations by leaving in order fails nobody") {
  TemporaryFolder folder;
  JobPatience patience = quick();
  patience.explaining = 50ms;
  Process other(folder.path(), 1, 2, patience, [&](JobWatch&) { wait_for_the_first(folder); });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, patience);
  other.wait();
  std::this_thread::sleep_for(200ms);
  const auto guard = watch.guard({[] { return std::string("the group 'data' broke"); }, nullptr});
  std::this_thread::sleep_for(400ms);
  CHECK_NOTHROW(watch.check());
}

TEST_CASE("a rank that leaves in order fails only those that go on waiting for it") {
  TemporaryFolder folder;
  JobPatience patience = quick();
  patience.leaving = 200ms;
  Process other(folder.path(), 1, 2, patience, [](JobWatch& watch) { watch.progress(3); });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, patience);
  other.wait();
  std::this_thread::sleep_for(400ms);
  CHECK_NOTHROW(watch.check());
  watch.progress(4);
  const JobWatch::Waiting waiting(watch);
  { const JobWatch::Waiting call(watch); }  // as an operation inside a longer wait
  CHECK(failure_of(watch).ends_with("has left the job in step 3, while rank 0 waits in step 4"));
}

TEST_CASE("a rank that an exception ends says so to the others") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [&](JobWatch& watch) {
    wait_for_the_first(folder);
    watch.progress(2);
    throw InternalError("a defect");
  });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
  const std::string id = std::to_string(other.id());
  CHECK(failure_of(watch) == "rank 1 (process " + id + " on '" + host() +
                                 "') has ended by an exception in step 2; its own output may say which");
  other.wait();
}

TEST_CASE("a rank that fails says why, and a later failure does not replace the first") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [&](JobWatch& watch) {
    wait_for_the_first(folder);
    watch.fail("rank 1 has no memory left");
    sleep_for_ever();
  });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
  CHECK(failure_of(watch) == "rank 1 has no memory left");
  watch.fail("something else");
  CHECK(failure_of(watch) == "rank 1 has no memory left");
}

TEST_CASE("what one rank throws in a step that all do is told to the others") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [&](JobWatch& watch) {
    wait_for_the_first(folder);
    watch.progress(8);
    as_one(&watch, [] { throw OutOfMemoryError("no room for 7 bytes"); });
  });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
  CHECK(failure_of(watch) == "rank 1 (process " + std::to_string(other.id()) + " on '" + host() +
                                 "') has failed in step 8: no room for 7 bytes");
  bool done = false;
  CHECK_THROWS_AS(as_one(&watch, [&] { done = true; }), CommunicationError);
  CHECK(!done);
}

TEST_CASE("a wait without an end names the ranks that are behind, and no wait means no limit") {
  TemporaryFolder folder;
  JobPatience patience = quick();
  patience.waiting = 300ms;
  Process second(folder.path(), 1, 3, quick(), [](JobWatch& watch) {
    watch.progress(6);
    sleep_for_ever();
  });
  Process third(folder.path(), 2, 3, quick(), [](JobWatch& watch) {
    watch.progress(5);
    sleep_for_ever();
  });
  JobWatch watch(meeting_of(folder.path()), 0, 3, {}, patience);
  watch.progress(6);
  std::this_thread::sleep_for(600ms);
  CHECK_NOTHROW(watch.check());
  const JobWatch::Waiting waiting(watch);
  CHECK(failure_of(watch) == "rank 0 has waited for others for 0 s in step 6: behind: rank 2 (process " +
                                 std::to_string(third.id()) + " on '" + host() + "') in step 5");
}

TEST_CASE("ranks that do not come are named after the stated time") {
  TemporaryFolder folder;
  JobPatience patience = quick();
  patience.joining = 1s;
  Process other(folder.path(), 1, 4, patience, [](JobWatch&) {});
  CHECK_THROWS_WITH_AS(
      JobWatch(meeting_of(folder.path()), 0, 4, {}, patience),
      ("rank 2, rank 3 of 4 did not come to '" + meeting_of(folder.path()).string() +
       "' within 1 s: do all processes run, with the same folder? ENCORE_RENDEZVOUS sets it, and "
       "ENCORE_JOB_ID the name of the job in it")
          .c_str(),
      CommunicationError);
}

TEST_CASE("a process that dies while others still come ends their waiting") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 3, quick(), [](JobWatch&) {});
  std::string sentence;
  std::thread first([&] {
    try {
      JobWatch watch(meeting_of(folder.path()), 0, 3, {}, quick());
    } catch (const CommunicationError& error) {
      sentence = error.what();
    }
  });
  // Rank 0 lists whom it has seen.
  const auto seen = [&] {
    const auto file = impl::RankFile::read(meeting_of(folder.path()) / "rank-0");
    return file && file->seen.size() == 3 && file->seen[1] != "-";
  };
  while (!seen()) std::this_thread::sleep_for(1ms);
  other.kill();
  first.join();
  CHECK(sentence.find("has ended while the ranks joined") != std::string::npos);
}

TEST_CASE("two processes of the same rank in a folder are told so") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 3, quick(), [](JobWatch&) {});
  while (!std::filesystem::exists(meeting_of(folder.path()) / "rank-1")) std::this_thread::sleep_for(1ms);
  Process again(folder.path(), 1, 3, quick(), [](JobWatch&) {});
  other.wait();
  CHECK(contents(folder.path() / "error-1").find("another process is rank 1") != std::string::npos);
}

TEST_CASE("a rank on another host is given up when its file stands still") {
  TemporaryFolder folder;
  JobPatience patience = quick();
  patience.silence = 1s;
  // A rank as another host would write it: not of a process that this one could ask for.
  std::jthread other([&](const std::stop_token& stop) {
    auto mine = impl::RankFile::of_this_process();
    mine.host = "elsewhere";
    mine.place = "elsewhere";
    mine.process = 17;
    mine.size = 2;
    const auto path = meeting_of(folder.path()) / "rank-1";
    int beats_left = 50;
    while (!stop.stop_requested() && beats_left > 0) {
      const auto first = impl::RankFile::read(meeting_of(folder.path()) / "rank-0");
      if (first) {
        mine.joined = first->nonce;
        mine.step = 9;
        ++mine.beat;
        mine.write(path);
        if (first->joined == first->nonce && first->seen.size() == 2 && first->seen[1] == mine.nonce)
          --beats_left;
      }
      std::this_thread::sleep_for(20ms);
    }
  });
  JobWatch watch(meeting_of(folder.path()), 0, 2, {}, patience);
  std::this_thread::sleep_for(500ms);
  CHECK_NOTHROW(watch.check());
  CHECK(failure_of(watch) == "rank 1 (process 17 on 'elsewhere') has not been heard of for 1 s in step 9");
}

TEST_CASE("the last rank to leave removes the files") {
  TemporaryFolder folder;
  {
    Process other(folder.path(), 1, 2, quick(), [](JobWatch&) {});
    JobWatch watch(meeting_of(folder.path()), 0, 2, {}, quick());
    other.wait();
    CHECK(std::filesystem::exists(meeting_of(folder.path())));
  }
  CHECK(!std::filesystem::exists(meeting_of(folder.path())));
}

TEST_CASE("a folder that cannot be made is named") {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "no folder";
  CHECK_THROWS_AS(JobWatch(folder.path() / "file" / "job", 0, 1, {}, quick()), OutputFileError);
}

}  // namespace
