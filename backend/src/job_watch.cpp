// SPDX-License-Identifier: Apache-2.0
#include "job_watcher.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace encore::backend {

using impl::RankFile;
using impl::RankState;

JobWatch::JobWatch(std::filesystem::path folder, int rank, int size, const std::vector<std::byte>& offer,
                   JobPatience patience)
    : implementation_(std::make_shared<Implementation>(std::move(folder), rank, size, patience)),
      offer_(implementation_->join(offer)),
      exceptions_(std::uncaught_exceptions()) {
  implementation_->start();
}
JobWatch::~JobWatch() { implementation_->leave(std::uncaught_exceptions() > exceptions_); }

int JobWatch::rank() const { return implementation_->rank(); }
int JobWatch::size() const { return implementation_->size(); }
const JobPatience& JobWatch::patience() const { return implementation_->patience(); }
const std::vector<std::byte>& JobWatch::offer() const { return offer_; }
void JobWatch::check() const { implementation_->check(); }
bool JobWatch::failed() const noexcept { return implementation_->failed(); }
void JobWatch::fail(const std::string& why) { implementation_->fail(why); }
void JobWatch::fail(const std::exception& thrown) { implementation_->fail(thrown); }
void JobWatch::explain() const { implementation_->explain(); }
void JobWatch::progress(std::int64_t step) noexcept { implementation_->progress(step); }
std::shared_ptr<void> JobWatch::guard(Guard guarded) { return implementation_->guard(std::move(guarded)); }

JobWatch::Waiting::Waiting(JobWatch& watch) : watch_(watch), began_(std::chrono::steady_clock::now()) {
  watch_.implementation_->begin_waiting(began_);
}
JobWatch::Waiting::~Waiting() { watch_.implementation_->end_waiting(began_); }

void JobWatch::Implementation::begin_waiting(Clock::time_point time) {
  const std::lock_guard lock(waits_mutex_);
  waits_.push_back(time);
}

void JobWatch::Implementation::end_waiting(Clock::time_point time) noexcept {
  const std::lock_guard lock(waits_mutex_);
  waits_.erase(std::ranges::find(waits_, time));
}

void JobWatch::Implementation::start() {
  thread_ = std::thread([this] { watch(); });
}

void JobWatch::Implementation::check() const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  throw CommunicationError(failure_);
}

void JobWatch::Implementation::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (failed()) return;
    failure_ = why;
    mine_.state = RankState::failed;
    mine_.cause = why;
    failed_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void JobWatch::Implementation::fail(const std::exception& thrown) {
  fail("rank " + std::to_string(rank_) + " (" + mine_.who() + ") has failed" + in_step(rank_) + ": " +
       thrown.what());
}

void JobWatch::Implementation::explain() const {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience_.explaining, [&] { return failed(); });
  }
  check();
}

std::shared_ptr<void> JobWatch::Implementation::guard(Guard guarded) {
  const auto entry = std::make_shared<Guarded>();
  entry->calls = std::move(guarded);
  {
    const std::lock_guard lock(mutex_);
    guards_.push_back(entry);
  }
  return {nullptr, [self = shared_from_this(), entry](std::nullptr_t) {
            {
              const std::lock_guard lock(self->mutex_);
              std::erase(self->guards_, entry);
            }
            const std::lock_guard calling(entry->mutex);
            entry->active = false;
          }};
}

void JobWatch::Implementation::watch() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (!failed()) changed_.wait_for(lock, patience_.beat, [&] { return stopping_ || failed(); });
      if (stopping_) return;
    }
    beat();
    if (failed()) {
      end_guards();
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, patience_.beat, [&] { return stopping_; })) return;
      continue;
    }
    for (int other = 0; other < size() && !failed(); ++other)
      if (other != rank_) look_at(other);
    look_at_waiting();
    look_at_guards();
  }
}

void JobWatch::Implementation::beat() noexcept {
  try {
    publish();
  } catch (const std::exception&) {
    // The others see a rank that stands still, and say so.
  }
}

void JobWatch::Implementation::publish() {
  RankFile file;
  {
    const std::lock_guard lock(mutex_);
    ++mine_.beat;
    mine_.step = step_.load(std::memory_order_relaxed);
    file = mine_;
  }
  write(file);
}

void JobWatch::Implementation::look_at(int other) {
  Peer& peer = peers_[static_cast<std::size_t>(other)];
  // Before its file, which a process that leaves writes last.
  const bool ended = peer.file.has_ended(mine_.place);
  const auto now = Clock::now();
  if (const auto file = RankFile::read(path(other))) {
    if (file->nonce != peer.file.nonce && (peer.left || file->same_process(peer.file))) {
      // It has left in order and is in its next job already.
      if (!peer.left) peer.left = now;
      return;
    }
    if (file->nonce != peer.file.nonce)
      return fail("another process has taken the place of " + who(other) + " in '" + folder_.string() +
                  "': give each job a folder of its own");
    if (file->beat != peer.file.beat) peer.heard = now;
    peer.file = *file;
  }
  if (peer.file.state == RankState::failed) return fail(peer.file.cause);
  if (peer.file.state == RankState::left) {
    if (!peer.left) peer.left = now;
    return;
  }
  if (ended) return fail(who(other) + " has ended" + in_step(other) + "; its own output may say why");
  const bool here = !mine_.place.empty() && peer.file.place == mine_.place;
  if (here || now - peer.heard <= patience_.silence) return;
  // Who cannot read its own file learns nothing about others.
  if (RankFile::read(path(rank_)))
    fail(who(other) + " has not been heard of for " + std::to_string(patience_.silence.count() / 1000) +
         " s" + in_step(other));
}

void JobWatch::Implementation::look_at_waiting() {
  Clock::time_point began;
  {
    const std::lock_guard lock(waits_mutex_);
    if (waits_.empty()) return;
    began = std::ranges::min(waits_);
  }
  const auto now = Clock::now();
  for (int other = 0; other < size(); ++other) {
    const auto& left = peers_[static_cast<std::size_t>(other)].left;
    if (left && now - std::max(*left, began) > patience_.leaving)
      return fail(who(other) + " has left the job" + in_step(other) + ", while rank " +
                  std::to_string(rank_) + " waits" + in_step(rank_));
  }
  if (now - began > patience_.waiting)
    fail("rank " + std::to_string(rank_) + " has waited for others for " +
         std::to_string(patience_.waiting.count() / 1000) + " s" + in_step(rank_) + ": " + behind());
}

std::string JobWatch::Implementation::behind() const {
  std::string ranks;
  const std::int64_t here = step_.load(std::memory_order_relaxed);
  for (int other = 0; other < size(); ++other)
    if (other != rank_ && peers_[static_cast<std::size_t>(other)].file.step < here)
      ranks += (ranks.empty() ? "" : ", ") + who(other) + in_step(other);
  return ranks.empty() ? "no rank is behind, so their operations differ or a GPU hangs" : "behind: " + ranks;
}

void JobWatch::Implementation::look_at_guards() {
  // What a rank does that leaves in order may look like trouble, and hurts only those that wait for it.
  if (std::ranges::any_of(peers_, [](const Peer& peer) { return peer.left.has_value(); })) return;
  std::vector<std::shared_ptr<Guarded>> guards;
  {
    const std::lock_guard lock(mutex_);
    guards = guards_;
  }
  for (const auto& entry : guards) {
    const std::lock_guard calling(entry->mutex);
    if (!entry->active || !entry->calls.trouble) continue;
    const std::string trouble = entry->calls.trouble();
    if (trouble.empty()) continue;
    // A peer's end shows here first; it has a name a little later.
    const auto now = Clock::now();
    if (!entry->trouble) entry->trouble = now;
    if (now - *entry->trouble >= patience_.explaining)
      fail("rank " + std::to_string(rank_) + in_step(rank_) + ": " + trouble);
  }
}

void JobWatch::Implementation::end_guards() {
  std::vector<std::shared_ptr<Guarded>> guards;
  {
    const std::lock_guard lock(mutex_);
    guards = guards_;
  }
  for (const auto& entry : guards) {
    const std::lock_guard calling(entry->mutex);
    if (entry->active && entry->calls.end && !std::exchange(entry->ended, true)) entry->calls.end();
  }
}

void JobWatch::Implementation::leave(bool by_exception) noexcept {
  try {
    if (by_exception)
      fail("rank " + std::to_string(rank_) + " (" + mine_.who() + ") has ended by an exception" +
           in_step(rank_) + "; its own output may say which");
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      if (!failed()) mine_.state = RankState::left;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    publish();
    for (int other = 0; other < size(); ++other) {
      const auto file = RankFile::read(path(other));
      if (known(other, file) && file->state == RankState::running && !file->has_ended(mine_.place)) return;
    }
    // What is another's belongs to the next job of this name.
    for (int other = 0; other < size(); ++other)
      if (known(other, RankFile::read(path(other)))) std::filesystem::remove(path(other));
    std::filesystem::remove(folder_);
  } catch (const std::exception&) {
    // Others remove the files at the same time, or keep something of their own in the folder.
  }
}

bool JobWatch::Implementation::known(int rank, const std::optional<RankFile>& file) const {
  return file && file->nonce == peers_[static_cast<std::size_t>(rank)].file.nonce;
}

std::string JobWatch::Implementation::who(int rank) const {
  return "rank " + std::to_string(rank) + " (" + peers_[static_cast<std::size_t>(rank)].file.who() + ")";
}

std::string JobWatch::Implementation::in_step(int rank) const {
  const std::int64_t step = rank == rank_ ? step_.load(std::memory_order_relaxed)
                                          : peers_[static_cast<std::size_t>(rank)].file.step;
  return step > 0 ? " in step " + std::to_string(step) : std::string();
}

}  // namespace encore::backend
