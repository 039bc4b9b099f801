// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rank_file.hpp"

#include <encore/backend/job_watch.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace encore::backend {

/// What JobWatch is made of: this process' file, what is known of the others, and the thread that looks at them.
class JobWatch::Implementation : public std::enable_shared_from_this<JobWatch::Implementation> {
 public:
  Implementation(std::filesystem::path folder, int rank, int size, JobPatience patience);

  std::vector<std::byte> join(const std::vector<std::byte>& offer);
  void start();
  void leave(bool by_exception) noexcept;

  void check() const;
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  void fail(const std::string& why);
  void fail(const std::exception& thrown);
  void explain() const;
  void progress(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  void begin_waiting(std::chrono::steady_clock::time_point time);
  void end_waiting(std::chrono::steady_clock::time_point time) noexcept;
  std::shared_ptr<void> guard(Guard guarded);

  int rank() const { return rank_; }
  const JobPatience& patience() const { return patience_; }
  int size() const { return static_cast<int>(peers_.size()); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    impl::RankFile file;
    Clock::time_point heard;
    std::optional<Clock::time_point> left;
  };
  struct Guarded {
    std::mutex mutex;
    Guard calls;
    std::optional<Clock::time_point> trouble;
    bool active = true, ended = false;
  };

  std::filesystem::path path(int rank) const { return impl::rank_file_path(folder_, rank); }
  /// "rank 3 (process 1234 on 'node7')".
  std::string who(int rank) const;
  std::string in_step(int rank) const;

  void meet();
  bool join_with(const std::vector<std::optional<impl::RankFile>>& files);
  std::string missing_ranks(const std::vector<std::optional<impl::RankFile>>& files) const;
  bool present(int rank, const std::optional<impl::RankFile>& file);
  void require_same_size(int rank, const impl::RankFile& file) const;
  /// Writes `file` as this rank's, also where another job has just removed the folder.
  void write(const impl::RankFile& file) const;

  /// Whether it is the file of this job's rank.
  bool known(int rank, const std::optional<impl::RankFile>& file) const;

  void watch();
  void beat() noexcept;
  void look_at(int rank);
  void look_at_waiting();
  void look_at_guards();
  void end_guards();
  std::string behind() const;
  void publish();

  const std::filesystem::path folder_;
  const int rank_;
  const JobPatience patience_;

  mutable std::mutex mutex_;  ///< for mine_, failure_, guards_ and stopping_
  mutable std::condition_variable changed_;
  impl::RankFile mine_;
  std::string failure_;
  std::vector<std::shared_ptr<Guarded>> guards_;
  bool stopping_ = false;

  std::vector<Peer> peers_;       ///< of the thread, once it runs
  std::vector<std::string> met_;  ///< nonces of those that were alive while joining
  std::atomic<bool> failed_ = false;
  std::atomic<std::int64_t> step_ = 0;
  std::mutex waits_mutex_;                ///< for waits_: no wait is held up by what holds the other one
  std::vector<Clock::time_point> waits_;  ///< since when
  std::thread thread_;
};

}  // namespace encore::backend
