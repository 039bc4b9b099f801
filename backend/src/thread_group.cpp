// SPDX-License-Identifier: Apache-2.0
#include "thread_group.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>
#include <array>
#include <cstring>

namespace encore::backend::impl {

namespace {

std::string elements(std::size_t count, DataType type) {
  return std::to_string(count) + " elements of " + std::string(name_of(type));
}

/// What a rank says in a split.
struct Choice {
  const std::string* name;
  int color, key;
};

}  // namespace

std::string ThreadCall::text() const {
  constexpr std::array names{"all_reduce", "reduce_scatter", "all_gather",
                             "broadcast",  "all_to_all",     "split"};
  const std::string operation = names[static_cast<std::size_t>(kind)];
  return kind == ThreadCallKind::split ? operation : operation + " of " + elements(count, type);
}

std::string ThreadMessage::text() const { return elements(count, type); }

ThreadGroup::ThreadGroup(std::shared_ptr<ThreadJob> job, std::string name, std::string origin,
                         std::vector<int> members)
    : job_(std::move(job)),
      name_(std::move(name)),
      origin_(std::move(origin)),
      members_(std::move(members)),
      calls_(members_.size()),
      arrived_(members_.size(), false),
      left_(members_.size(), false),
      made_(members_.size()) {
  const std::lock_guard lock(job_->mutex);
  first_ = job_->groups.empty();
  job_->groups.push_back(this);
}

ThreadGroup::~ThreadGroup() {
  const std::lock_guard lock(job_->mutex);
  std::erase(job_->groups, this);
}

void ThreadGroup::leave(int rank) {
  const std::lock_guard lock(job_->mutex);
  for (ThreadGroup* group : job_->groups) {
    if (!first_ && group != this) continue;
    const auto member = std::ranges::find(group->members_, members_[static_cast<std::size_t>(rank)]);
    if (member == group->members_.end()) continue;
    group->left_[static_cast<std::size_t>(member - group->members_.begin())] = true;
    group->changed_.notify_all();
  }
}

void ThreadGroup::require_same() {
  for (std::size_t other = 0; other < calls_.size(); ++other)
    if (!calls_[other].fits(calls_[0])) {
      const std::string sentence = "the ranks of '" + name_ + "' do not do the same: rank 0 calls " +
                                   calls_[0].text() + ", rank " + std::to_string(other) + " " +
                                   calls_[other].text();
      const Lock lock(job_->mutex);
      fail(sentence);
    }
}

void ThreadGroup::meet(int rank, const ThreadCall& call, const ThreadCall* announced) {
  Lock lock(job_->mutex);
  try {
    meet(lock, rank, call, announced);
  } catch (...) {
    // The data is the caller's again, who may free it.
    changed_.wait(lock, [&] { return working_ == 0; });
    throw;
  }
}

void ThreadGroup::end_work() {
  const std::lock_guard lock(job_->mutex);
  if (--working_ == 0) changed_.notify_all();
}

void ThreadGroup::wait_for_work() {
  Lock lock(job_->mutex);
  changed_.wait(lock, [&] { return working_ == 0; });
}

void ThreadGroup::meet(Lock& lock, int rank, const ThreadCall& call, const ThreadCall* announced) {
  refuse_failed();
  if (const auto gone = departed()) fail(departure(*gone));
  if (announced != nullptr) calls_[static_cast<std::size_t>(rank)] = *announced;
  arrived_[static_cast<std::size_t>(rank)] = true;
  if (std::ranges::find(arrived_, false) == arrived_.end()) {
    arrived_.assign(arrived_.size(), false);
    ++meetings_;
    if (announced != nullptr) working_ = size();
    changed_.notify_all();
    return;
  }
  const std::uint64_t meeting = meetings_;
  const auto over = [&] { return meetings_ != meeting || job_->failure || departed(); };
  const bool in_time = changed_.wait_for(lock, job_->patience, over);
  if (meetings_ != meeting) return;
  refuse_failed();
  fail(in_time ? departure(*departed()) : late_ranks(call));
}

void ThreadGroup::exchange(int rank, ThreadMessage* sent, int to, ThreadMessage* received, int from) {
  Lock lock(job_->mutex);
  refuse_failed();
  if (left_[static_cast<std::size_t>(rank)]) fail(departure(rank));
  if (sent != nullptr) {
    messages_[{rank, to}].push_back(sent);
    changed_.notify_all();
  }
  try {
    if (received != nullptr) receive(lock, rank, *received, from);
    if (sent != nullptr) finish_send(lock, rank, *sent, to);
  } catch (...) {
    // The data is the caller's again: nobody may find it, or be reading it.
    if (sent != nullptr) {
      std::erase(messages_[{rank, to}], sent);
      changed_.wait(lock, [&] { return sent->state != ThreadMessage::State::taken; });
    }
    throw;
  }
}

void ThreadGroup::receive(Lock& lock, int rank, ThreadMessage& received, int from) {
  std::deque<ThreadMessage*>& queue = messages_[{from, rank}];
  const auto gone = [&] { return left_[static_cast<std::size_t>(from)]; };
  const auto ready = [&] { return !queue.empty() || job_->failure || gone(); };
  const bool in_time = changed_.wait_for(lock, job_->patience, ready);
  refuse_failed();
  if (queue.empty())
    fail(in_time ? departure(from)
                 : who(from) + " did not come to send " + received.text() + " to rank " +
                       std::to_string(rank) + within());
  ThreadMessage& message = *queue.front();
  queue.pop_front();
  if (message.count != received.count || message.type != received.type)
    fail("the ranks of '" + name_ + "' do not do the same: rank " + std::to_string(from) + " sends " +
         message.text() + ", rank " + std::to_string(rank) + " receives " + received.text());
  message.state = ThreadMessage::State::taken;
  lock.unlock();
  if (message.count > 0) std::memcpy(received.data, message.data, message.count * size_of(message.type));
  lock.lock();
  message.state = ThreadMessage::State::done;
  changed_.notify_all();
}

void ThreadGroup::finish_send(Lock& lock, int rank, ThreadMessage& sent, int to) {
  const auto gone = [&] { return left_[static_cast<std::size_t>(to)]; };
  const auto over = [&] {
    return sent.state == ThreadMessage::State::done ||
           (sent.state == ThreadMessage::State::waiting && (job_->failure || gone()));
  };
  bool in_time = changed_.wait_for(lock, job_->patience, over);
  if (sent.state == ThreadMessage::State::taken) {
    changed_.wait(lock, over);
    in_time = true;
  }
  if (sent.state == ThreadMessage::State::done) return;
  refuse_failed();
  fail(in_time ? departure(to)
               : who(to) + " did not come to receive " + sent.text() + " from rank " + std::to_string(rank) +
                     within());
}

std::pair<std::shared_ptr<ThreadGroup>, int> ThreadGroup::split(int rank, const std::string& name, int color,
                                                                int key) {
  const Choice mine{&name, color, key};
  const ThreadCall call{ThreadCallKind::split, reinterpret_cast<const std::byte*>(&mine), nullptr, 0,
                        DataType::uint8};
  std::vector<int> ranks;
  together(rank, call, [&](const std::vector<ThreadCall>& calls) {
    const auto choice_of = [&](int other) -> const Choice& {
      return *reinterpret_cast<const Choice*>(calls[static_cast<std::size_t>(other)].send);
    };
    for (int other = 0; other < size(); ++other)
      if (color >= 0 && choice_of(other).color == color) ranks.push_back(other);
    std::ranges::stable_sort(ranks, {}, [&](int other) { return choice_of(other).key; });
    if (ranks.empty() || ranks.front() != rank) return;
    std::vector<int> members;
    for (const int other : ranks) members.push_back(members_[static_cast<std::size_t>(other)]);
    made_[static_cast<std::size_t>(rank)] =
        std::make_shared<ThreadGroup>(job_, name, origin_, std::move(members));
  });
  std::shared_ptr<ThreadGroup> group;
  if (!ranks.empty()) group = made_[static_cast<std::size_t>(ranks.front())];
  meet(rank, call, nullptr);  // all have theirs
  made_[static_cast<std::size_t>(rank)] = nullptr;
  return {std::move(group), static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin())};
}

void ThreadGroup::fail(std::string why) {
  if (!job_->failure) job_->failure = std::move(why);
  for (ThreadGroup* group : job_->groups) group->changed_.notify_all();
  throw CommunicationError(*job_->failure);
}

void ThreadGroup::refuse_failed() const {
  if (job_->failure) throw CommunicationError(*job_->failure);
}

std::optional<int> ThreadGroup::departed() const {
  const auto gone = std::ranges::find(left_, true);
  if (gone == left_.end()) return std::nullopt;
  return static_cast<int>(gone - left_.begin());
}

std::string ThreadGroup::who(int rank) const {
  std::string text = "rank " + std::to_string(rank) + " of '" + name_ + "'";
  if (!first_)
    text += " (rank " + std::to_string(members_[static_cast<std::size_t>(rank)]) + " of '" + origin_ + "')";
  return text;
}

std::string ThreadGroup::late_ranks(const ThreadCall& call) const {
  std::string late;
  for (std::size_t rank = 0; rank < arrived_.size(); ++rank)
    if (!arrived_[rank]) late += (late.empty() ? "rank " : ", rank ") + std::to_string(rank);
  return late + " of '" + name_ + "' did not come to " + call.text() + within();
}

}  // namespace encore::backend::impl
