// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace encore::backend {

/// How long a job waits for what.
struct JobPatience {
  std::chrono::milliseconds joining = std::chrono::minutes(5);      ///< for all ranks to come
  std::chrono::milliseconds beat = std::chrono::milliseconds(250);  ///< between looks at the others
  std::chrono::milliseconds silence =
      std::chrono::minutes(1);  ///< of a rank on another host, until it counts as ended
  std::chrono::milliseconds leaving =
      std::chrono::seconds(10);  ///< of an operation, for a rank that has left in order
  std::chrono::milliseconds waiting =
      std::chrono::minutes(10);  ///< of an operation, while every rank is alive
  std::chrono::milliseconds explaining =
      std::chrono::seconds(2);  ///< of an operation that has failed, for a rank's end that was the reason
  std::chrono::milliseconds interrupting = std::chrono::seconds(
      1);  ///< of a failed job, for a call under way to end by itself, and for the end of its group after that
  std::chrono::milliseconds ending = std::chrono::seconds(
      30);  ///< of a rank that leaves a group in order, for the others; then it goes without them
};

/// Sees to it that a rank which ends ends the job: operations of NCCL wait for it for ever. Each process of a job keeps a
/// file in a folder that all share, and looks at the others' from a thread of its own. Then a rank is known to have ended
///
///   - on the same host two beats after its process did, however it did;
///   - on another host when its file has stood still for `silence`;
///   - anywhere when its watch was destroyed by an exception or told so by fail().
///
/// Whoever sees it ends the operations under way and passes on which rank it was, so that all ranks name the same one.
/// Thread-safe, but for destruction.
class JobWatch {
 public:
  /// Returns when all ranks have come to the folder. `offer`: what rank 0 brings to all, such as the id of an NCCL group.
  /// The folder is made where it is missing; files of an earlier job in it do not matter. Throws CommunicationError, naming
  /// them, when ranks do not come in time or one has ended, and OutputFileError when the folder cannot be written.
  JobWatch(std::filesystem::path folder, int rank, int size, const std::vector<std::byte>& offer = {},
           JobPatience patience = {});
  /// Leaves in order, or as one that failed when an exception is the reason. The last rank to leave removes the files.
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  int rank() const;
  int size() const;
  const JobPatience& patience() const;
  /// What rank 0 offered.
  const std::vector<std::byte>& offer() const;

  /// Throws CommunicationError when the job has failed, with the rank that was the reason. Costs nothing.
  void check() const;
  bool failed() const noexcept;
  /// Ends the job for all ranks, unless something has before: `why` is a sentence that names this rank.
  void fail(const std::string& why);
  /// The same, with what this rank has thrown.
  void fail(const std::exception& thrown);
  /// Waits a little for the watch to learn why an operation failed, and throws that; returns when it finds nothing.
  void explain() const;

  /// Which step this rank is in, for the errors of others.
  void progress(std::int64_t step) noexcept;

  /// While one lives, its thread waits for other ranks, maybe by way of the device: not longer than `leaving` and
  /// `waiting`. Several may live at a time, also one inside another; the oldest counts.
  class Waiting {
   public:
    explicit Waiting(JobWatch& watch);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    JobWatch& watch_;
    const std::chrono::steady_clock::time_point began_;
  };

  /// Something that can hang: `trouble` says what went wrong with it by itself, or nothing; `end`, called once the job has
  /// failed, makes whoever waits in it return, and does not block. Both are called by the watch's thread.
  struct Guard {
    std::function<std::string()> trouble;
    std::function<void()> end;
  };
  /// Guards until what is returned dies, which waits for calls under way.
  [[nodiscard]] std::shared_ptr<void> guard(Guard guarded);

 private:
  class Implementation;
  std::shared_ptr<Implementation> implementation_;
  std::vector<std::byte> offer_;
  int exceptions_;  ///< under way when it was made
};

}  // namespace encore::backend
