// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/transport.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace encore::backend::impl {

enum class ThreadCallKind { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, split };

/// What a rank asks for.
struct ThreadCall {
  ThreadCallKind kind;
  const std::byte* send;
  std::byte* receive;
  std::size_t count;
  DataType type;
  Reduction reduction = Reduction::sum;
  int root = 0;

  bool fits(const ThreadCall& other) const {
    return kind == other.kind && count == other.count && type == other.type && reduction == other.reduction &&
           root == other.root;
  }
  std::string text() const;
};

/// One end of a message between two ranks.
struct ThreadMessage {
  std::byte* data;  ///< of a sender only read
  std::size_t count;
  DataType type;
  enum class State { waiting, taken, done } state = State::waiting;

  std::string text() const;
};

class ThreadGroup;

/// What all groups have in common that were split from one another: the first failure ends every one of them.
struct ThreadJob {
  explicit ThreadJob(std::chrono::milliseconds time) : patience(time) {}

  const std::chrono::milliseconds patience;
  std::mutex mutex;  ///< for what follows and for the groups' own state
  std::vector<ThreadGroup*> groups;
  std::optional<std::string> failure;
};

/// Where the ranks of one group meet.
class ThreadGroup {
 public:
  /// `members`: each rank's number in the first group of the job, called `origin`. The job's first one is it itself.
  ThreadGroup(std::shared_ptr<ThreadJob> job, std::string name, std::string origin, std::vector<int> members);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int size() const { return static_cast<int>(members_.size()); }

  /// Runs `work(calls)` on every rank once all have called. Returns, also by an exception, when all have done theirs:
  /// nobody then reads or writes what this rank has handed over.
  template <class Work>
  void together(int rank, const ThreadCall& call, const Work& work) {
    meet(rank, call, &call);
    try {
      require_same();
      work(calls_);
    } catch (...) {
      leave(rank);
      end_work();
      wait_for_work();
      throw;
    }
    end_work();
    meet(rank, call, nullptr);
  }

  /// Sends what is given and receives what is given, both at the same time.
  void exchange(int rank, ThreadMessage* sent, int to, ThreadMessage* received, int from);

  /// The group of this rank's color and its rank there; none below 0. Every rank calls it.
  std::pair<std::shared_ptr<ThreadGroup>, int> split(int rank, const std::string& name, int color, int key);

  /// Operations that need this rank fail from now on; after leaving the first group of the job, in all groups.
  void leave(int rank);

 private:
  using Lock = std::unique_lock<std::mutex>;

  void require_same();
  /// `announced`: what the others are to see; without it they may still be reading what was.
  void meet(int rank, const ThreadCall& call, const ThreadCall* announced);
  void meet(Lock& lock, int rank, const ThreadCall& call, const ThreadCall* announced);
  void end_work();
  void wait_for_work();
  void receive(Lock& lock, int rank, ThreadMessage& received, int from);
  void finish_send(Lock& lock, int rank, ThreadMessage& sent, int to);
  /// Ends the whole job, unless something has before, and throws what has.
  [[noreturn]] void fail(std::string why);
  void refuse_failed() const;

  std::string who(int rank) const;
  std::string departure(int rank) const { return who(rank) + " has left the group"; }
  std::string late_ranks(const ThreadCall& call) const;
  std::optional<int> departed() const;
  std::string within() const { return " within " + std::to_string(job_->patience.count()) + " ms"; }

  const std::shared_ptr<ThreadJob> job_;
  const std::string name_, origin_;
  const std::vector<int> members_;
  bool first_ = false;  ///< of the job

  std::condition_variable changed_;
  std::vector<ThreadCall> calls_;  ///< read without the mutex between two meetings
  std::vector<bool> arrived_, left_;
  std::uint64_t meetings_ = 0;
  int working_ = 0;  ///< ranks that read and write what others have announced
  std::map<std::pair<int, int>, std::deque<ThreadMessage*>> messages_;  ///< by sender and receiver
  std::vector<std::shared_ptr<ThreadGroup>> made_;                      ///< by a split, each by one rank
};

}  // namespace encore::backend::impl
