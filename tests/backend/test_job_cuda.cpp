// SPDX-License-Identifier: Apache-2.0
// GPU jobs in which a rank ends. What needs two GPUs runs this program again, once for each rank.
#include <encore/backend/communicator.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/event.hpp>
#include <encore/backend/job.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/watched_wait.hpp>

#include "job_processes.hpp"
#include "spaces.hpp"
#include "temporary_folder.hpp"

#include <spawn.h>

#include <chrono>
#include <thread>

using namespace encore;
using namespace encore::backend;
using namespace encore::tests;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

using Cuda = Kokkos::Cuda;

Vector<float, Cuda> view(const TestArray<Cuda, float>& array) {
  return Vector<float, Cuda>(array.data(), array.size());
}

/// This program, running one case with the variables of a rank.
pid_t start_rank(const std::string& test_case, int rank, const std::filesystem::path& folder) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  const std::string number = std::to_string(rank);
  for (const std::string& variable :
       {"RANK=" + number, "LOCAL_RANK=" + number, std::string("WORLD_SIZE=2"),
        std::string("LOCAL_WORLD_SIZE=2"), "ENCORE_RENDEZVOUS=" + folder.string(),
        std::string("NCCL_NVLS_ENABLE=0")})
    variables.push_back(variable);
  std::vector<std::string> words{"rank", "--test-case=" + test_case, "--no-skip"};
  std::vector<char*> arguments, environment;
  for (std::string& word : words) arguments.push_back(word.data());
  for (std::string& variable : variables) environment.push_back(variable.data());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  pid_t id = 0;
  REQUIRE(::posix_spawn(&id, "/proc/self/exe", nullptr, nullptr, arguments.data(), environment.data()) == 0);
  return id;
}

/// Its exit status, or -1 when it has not ended in time, or not by itself.
int exit_status_of(pid_t id, std::chrono::seconds limit) {
  const auto deadline = Clock::now() + limit;
  int status = 0;
  while (::waitpid(id, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      ::kill(id, SIGKILL);
      ::waitpid(id, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(10ms);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("NCCL's operations end with the job, and so do graphs that recorded them") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](JobWatch&) { std::this_thread::sleep_for(1h); });
  const auto watch =
      std::make_shared<JobWatch>(meeting_of(folder.path()), 0, 2, std::vector<std::byte>(), quick());
  const auto start = Clock::now();
  {
    Stream<Cuda> stream;
    const auto world = nccl_transport("world", make_nccl_id(), 1, 0, watch);
    CHECK(world->watch() == watch);
    Communicator<Cuda> communicator("tensor", world->split("tensor", 0, 0));
    CHECK(communicator.watch() == watch);
    TestArray<Cuda, float> values(stream, {1, 2, 3});
    const auto reduce = [&] {
      communicator.all_reduce<float>(stream, "test::sum", view(values), Reduction::sum);
    };
    RecordedGraph<Cuda> graph(stream, "sum", reduce);
    graph.replay();
    synchronize(stream, "the replay", watch.get());
    other.kill();
    while (!watch->failed()) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(2s);  // for the abort, which waits for the graph
    CHECK_THROWS_AS(reduce(), CommunicationError);
    CHECK_THROWS_AS(synchronize(stream, "the replay", watch.get()), CommunicationError);
  }
  CHECK(Clock::now() - start < 60s);
}

TEST_CASE("an exception that destroys the end of a group stays what it is, and ends the job for the others") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](JobWatch& watch) {
    while (true) {
      watch.check();
      std::this_thread::sleep_for(1ms);
    }
  });
  const auto watch =
      std::make_shared<JobWatch>(meeting_of(folder.path()), 0, 2, std::vector<std::byte>(), quick());
  const auto work = [](const std::shared_ptr<JobWatch>& watched_by) {
    const Communicator<Cuda> communicator("world", nccl_transport("world", make_nccl_id(), 1, 0, watched_by));
    throw OutOfMemoryError("no room for a sum");
  };
  const auto start = Clock::now();
  CHECK_THROWS_WITH_AS(work(nullptr), "no room for a sum", OutOfMemoryError);
  CHECK(!watch->failed());
  CHECK_THROWS_WITH_AS(work(watch), "no room for a sum", OutOfMemoryError);
  CHECK(watch->failed());
  CHECK(Clock::now() - start < 20s);
  other.wait();
  CHECK(read_bytes(folder / "error-1") == "rank 0 has ended by an exception; its own output may say which");
}

TEST_CASE("a group that is closed in order does not fail the job") {
  TemporaryFolder folder;
  const auto watch =
      std::make_shared<JobWatch>(meeting_of(folder.path()), 0, 1, std::vector<std::byte>(), quick());
  const auto world = nccl_transport("world", make_nccl_id(), 1, 0, watch);
  const auto part = world->split("data", 0, 0);
  part->close();
  world->close();
  world->close();
  CHECK_NOTHROW(watch->check());
  float value = 1;
  CHECK_THROWS_WITH_AS(world->all_reduce(&value, &value, 1, DataType::float32, Reduction::sum, nullptr),
                       "all_reduce: rank 0 has left 'world'", CommunicationError);
}

// A rank of the case below.
TEST_CASE("rank of two: the other one dies" * doctest::skip()) {
  const ProcessRank process = process_rank();
  std::string sentence;
  Clock::time_point last = Clock::now();
  try {
    const Job job = join_job(Backend::cuda, process, quick());
    Stream<Cuda> stream;
    Communicator<Cuda> communicator("world", job.world);
    Event<Cuda> done;
    TestArray<Cuda, float> values(stream, {1, 2, 3});
    RecordedGraph<Cuda> graph(stream, "sum", [&] {
      communicator.all_reduce<float>(stream, "test::sum", view(values), Reduction::maximum);
    });
    for (int step = 1;; ++step) {
      last = Clock::now();
      job.watch->progress(step);
      if (process.rank == 1 && step == 100) ::raise(SIGKILL);
      graph.replay();
      done.record(stream);
      wait(done, stream, job.watch.get());
    }
  } catch (const CommunicationError& error) {
    sentence = error.what();
  }
  // Also with the end of everything that was used: nothing hangs.
  CHECK(sentence.starts_with("rank 1 (process "));
  CHECK(Clock::now() - last < 10s);
}

TEST_CASE("a rank that is killed ends the other one, which waits for it on its GPU, by its name") {
  int gpus = 0;
  REQUIRE(cudaGetDeviceCount(&gpus) == cudaSuccess);
  if (gpus < 2) {
    MESSAGE("not run: it needs two GPUs");
    return;
  }
  TemporaryFolder folder;
  const std::string test_case = "rank of two: the other one dies";
  const pid_t first = start_rank(test_case, 0, folder.path());
  const pid_t second = start_rank(test_case, 1, folder.path());
  CHECK(exit_status_of(first, 120s) == 0);
  CHECK(exit_status_of(second, 10s) == -1);
}
