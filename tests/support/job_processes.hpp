// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/job_watch.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

namespace encore::tests {

/// Short, but long enough for a loaded machine.
inline backend::JobPatience quick() {
  backend::JobPatience patience;
  patience.joining = std::chrono::seconds(60);
  patience.beat = std::chrono::milliseconds(20);
  return patience;
}

/// Where the ranks of a test meet.
inline std::filesystem::path meeting_of(const std::filesystem::path& folder) { return folder / "job"; }

/// Another process, which runs `body(watch)` as a rank. Killed at the end, if not before.
class Process {
 public:
  template <class Body>
  Process(const std::filesystem::path& folder, int rank, int size, backend::JobPatience patience,
          const Body& body)
      : id_(::fork()) {
    if (id_ != 0) return;
    try {
      backend::JobWatch watch(meeting_of(folder), rank, size, {}, patience);
      body(watch);
    } catch (const std::exception& error) {
      std::ofstream(folder / ("error-" + std::to_string(rank))) << error.what();
      ::_exit(1);
    }
    ::_exit(0);
  }
  ~Process() { kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    wait();
  }
  void wait() {
    int status = 0;
    if (id_ > 0) ::waitpid(std::exchange(id_, 0), &status, 0);
  }

 private:
  pid_t id_;
};

}  // namespace encore::tests
