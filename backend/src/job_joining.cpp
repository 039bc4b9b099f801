// SPDX-License-Identifier: Apache-2.0
// How ranks find each other in a folder. Each writes a file with a nonce. Rank 0 lists the nonces that it sees; who is
// listed takes rank 0's nonce over; a rank is done when all have. No file of an earlier job has rank 0's nonce.
#include "job_watcher.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/hexadecimal.hpp>

#include <algorithm>
#include <utility>

namespace encore::backend {

using impl::RankFile;
using impl::RankState;

JobWatch::Implementation::Implementation(std::filesystem::path folder, int rank, int size,
                                         JobPatience patience)
    : folder_(std::move(folder)), rank_(rank), patience_(patience) {
  if (size < 1 || rank < 0 || rank >= size)
    throw ConfigurationError("a job has no rank " + std::to_string(rank) + " of " + std::to_string(size));
  peers_.resize(static_cast<std::size_t>(size));
  met_.resize(static_cast<std::size_t>(size));
  mine_ = RankFile::of_this_process();
}

/// A process that has ended counts as none, unless it was met alive or has joined this job: then its end is this job's.
bool JobWatch::Implementation::present(int rank, const std::optional<RankFile>& file) {
  if (!file) return false;
  std::string& met = met_[static_cast<std::size_t>(rank)];
  if (file->state == RankState::running && !file->has_ended(mine_.place)) {
    met = file->nonce;
    return true;
  }
  const bool joined = !mine_.joined.empty() && file->joined == mine_.joined;
  if (met != file->nonce && !joined) return false;
  if (file->state == RankState::failed) throw CommunicationError(file->cause);
  // One that is through with joining may leave before others have seen that all are there.
  if (file->state == RankState::left) return true;
  throw CommunicationError("rank " + std::to_string(rank) + " (" + file->who() +
                           ") has ended while the ranks joined; its own output may say why");
}

bool JobWatch::Implementation::join_with(const std::vector<std::optional<RankFile>>& files) {
  const auto& own = files[static_cast<std::size_t>(rank_)];
  if (own && own->nonce != mine_.nonce)
    throw CommunicationError("another process is rank " + std::to_string(rank_) + " in '" + folder_.string() +
                             "' too (" + own->who() + "): give each job a folder of its own");
  const RankFile before = mine_;
  if (rank_ == 0) {
    mine_.seen.clear();
    for (const auto& file : files) mine_.seen.push_back(file ? file->nonce : "");
    mine_.joined = mine_.nonce;
  } else if (const auto& first = files.front()) {
    const auto mine = static_cast<std::size_t>(rank_);
    if (first->seen.size() > mine && first->seen[mine] == mine_.nonce) mine_.joined = first->nonce;
  }
  if (mine_.joined != before.joined || mine_.seen != before.seen) mine_.write(path(rank_));
  return !mine_.joined.empty() &&
         std::ranges::all_of(files, [&](const auto& file) { return file && file->joined == mine_.joined; });
}

/// Those that never came; else those that do not see the same rank 0.
std::string JobWatch::Implementation::missing_ranks(const std::vector<std::optional<RankFile>>& files) const {
  std::string never, apart;
  const auto add = [](std::string& list, std::size_t rank) {
    list += (list.empty() ? "rank " : ", rank ") + std::to_string(rank);
  };
  for (std::size_t other = 0; other < files.size(); ++other) {
    if (met_[other].empty()) add(never, other);
    if (!files[other] || files[other]->joined != mine_.joined) add(apart, other);
  }
  return never.empty() ? apart : never;
}

std::vector<std::byte> JobWatch::Implementation::join(const std::vector<std::byte>& offer) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error)
    throw OutputFileError("the folder '" + folder_.string() +
                          "' by which ranks find each other cannot be made: " + error.message());
  if (rank_ == 0) mine_.offer = to_hexadecimal(offer);
  mine_.write(path(rank_));
  try {
    meet();
  } catch (const CommunicationError& failure) {
    // So that the others do not take this rank's end for the reason.
    const auto own = RankFile::read(path(rank_));
    if (own && own->nonce == mine_.nonce) {
      mine_.state = RankState::failed;
      mine_.cause = failure.what();
      mine_.write(path(rank_));
    }
    throw;
  }
  return from_hexadecimal(peers_.front().file.offer);
}

void JobWatch::Implementation::meet() {
  const auto deadline = Clock::now() + patience_.joining;
  auto pause = std::chrono::milliseconds(1);
  std::vector<std::optional<RankFile>> files(peers_.size());
  while (true) {
    for (int other = 0; other < size(); ++other) {
      auto file = RankFile::read(path(other));
      if (!present(other, file)) file.reset();
      files[static_cast<std::size_t>(other)] = std::move(file);
    }
    if (join_with(files)) break;
    if (Clock::now() > deadline) {
      const std::string missing = missing_ranks(files);
      throw CommunicationError(missing + " of " + std::to_string(size()) + " did not come to '" +
                               folder_.string() + "' within " +
                               std::to_string(patience_.joining.count() / 1000) +
                               " s: do all processes run, with the same folder?");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(100));
  }
  const auto now = Clock::now();
  for (std::size_t other = 0; other < files.size(); ++other)
    peers_[other] = {std::move(*files[other]), now, {}};
}

}  // namespace encore::backend
