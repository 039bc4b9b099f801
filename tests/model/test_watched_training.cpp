// SPDX-License-Identifier: Apache-2.0
// A trainer whose group is watched, beside a process that only watches.
#include "job_processes.hpp"
#include "temporary_folder.hpp"
#include "trainers.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/thread_transport.hpp>

#include <doctest/doctest.h>

#include <thread>

namespace {

using namespace encore;
using namespace encore::tests;
using backend::DataType;

/// A group of one with a watch, as NCCL's has.
class WatchedTransport final : public backend::Transport {
 public:
  explicit WatchedTransport(std::shared_ptr<backend::JobWatch> watch)
      : watch_(std::move(watch)), end_(backend::thread_transports("data", 1).front()) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string description() const override { return "watched"; }
  void all_reduce(const void* send, void* receive, std::size_t count, DataType type,
                  backend::Reduction reduction, void* queue) override {
    if (broken) throw OutOfMemoryError("no room for a sum");
    end_->all_reduce(send, receive, count, type, reduction, queue);
  }
  void reduce_scatter(const void* send, void* receive, std::size_t count, DataType type,
                      backend::Reduction reduction, void* queue) override {
    end_->reduce_scatter(send, receive, count, type, reduction, queue);
  }
  void all_gather(const void* send, void* receive, std::size_t count, DataType type, void* queue) override {
    end_->all_gather(send, receive, count, type, queue);
  }
  void broadcast(void* data, std::size_t count, DataType type, int root, void* queue) override {
    end_->broadcast(data, count, type, root, queue);
  }
  void all_to_all(const void* send, void* receive, std::size_t count, DataType type, void* queue) override {
    end_->all_to_all(send, receive, count, type, queue);
  }
  void send(const void*, std::size_t, DataType, int, void*) override { refuse(); }
  void receive(void*, std::size_t, DataType, int, void*) override { refuse(); }
  void send_receive(const void*, std::size_t, int, void*, std::size_t, int, DataType, void*) override {
    refuse();
  }
  std::shared_ptr<Transport> split(std::string, int, int) override { refuse(); }
  std::shared_ptr<backend::JobWatch> watch() const override { return watch_; }
  void close() override { end_->close(); }

  bool broken = false;

 private:
  [[noreturn]] static void refuse() { throw InternalError("a group of one has nobody to talk to"); }

  std::shared_ptr<backend::JobWatch> watch_;
  std::shared_ptr<Transport> end_;
};

struct Training {
  std::shared_ptr<WatchedTransport> transport;
  model::Configuration configuration;
  std::unique_ptr<model::Trainer> trainer;
  std::int64_t steps = 0;

  explicit Training(std::shared_ptr<backend::JobWatch> watch)
      : transport(std::make_shared<WatchedTransport>(std::move(watch))),
        configuration(resolve(tiny_model("llama"), {"backend=serial"})),
        trainer(model::make_trainer(configuration, {transport})) {}

  void step() {
    const Batch batch = random_batch(configuration, steps++);
    trainer->set_batch(batch.ids, batch.labels);
    trainer->step(0.01);
  }
};

TEST_CASE("a step throws when a rank has ended, and others are told which step this rank is in") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](backend::JobWatch&) {
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  });
  const auto watch =
      std::make_shared<backend::JobWatch>(meeting_of(folder.path()), 0, 2, std::vector<std::byte>(), quick());
  Training training(watch);
  for (int step = 0; step < 3; ++step) training.step();
  const auto told = [&] {
    return read_bytes(meeting_of(folder.path()) / "rank-0").find("\nstep=3\n") != std::string::npos;
  };
  while (!told()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  other.kill();
  while (!watch->failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK_THROWS_AS(training.step(), CommunicationError);
}

TEST_CASE("a step that throws on one rank is told to the others with its words") {
  TemporaryFolder folder;
  Process other(folder.path(), 1, 2, quick(), [](backend::JobWatch& watch) {
    while (true) {
      watch.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto watch =
      std::make_shared<backend::JobWatch>(meeting_of(folder.path()), 0, 2, std::vector<std::byte>(), quick());
  Training training(watch);
  for (int step = 0; step < 4; ++step) training.step();
  training.transport->broken = true;
  CHECK_THROWS_AS(training.step(), OutOfMemoryError);
  other.wait();
  const std::string told = read_bytes(folder / "error-1");
  CHECK(told.starts_with("rank 0 (process "));
  CHECK(told.ends_with("') has failed in step 5: no room for a sum"));
}

}  // namespace
