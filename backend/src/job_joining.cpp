// SPDX-License-Identifier: Apache-2.0
// How ranks find each other in a folder. Each writes a file with a nonce. Rank 0 lists the nonces that it sees; who is
// listed takes rank 0's nonce over; a rank is done when all have. No file of an earlier job has rank 0's nonce.
#include "job_folder.hpp"
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
  mine_.size = size;
}

void JobWatch::Implementation::write(const RankFile& file) const {
  constexpr int attempts = 10;
  for (int attempt = 1;; ++attempt) {
    try {
      return file.write(path(rank_));
    } catch (const OutputFileError&) {
      if (attempt == attempts) throw;
    }
    impl::make_folder(folder_);
  }
}

/// A process that has ended counts as none, unless it was met alive, has met this one or has joined this job: then its end
/// is this job's.
bool JobWatch::Implementation::present(int rank, const std::optional<RankFile>& file) {
  if (!file) return false;
  std::string& met = met_[static_cast<std::size_t>(rank)];
  if (file->state == RankState::running && !file->has_ended(mine_.place)) {
    met = file->nonce;
    // One that an earlier job has left on another host cannot be told from a running one, unless it answers this job.
    const bool here = !mine_.place.empty() && file->place == mine_.place;
    if (here || (!mine_.joined.empty() && file->joined == mine_.joined)) require_same_size(rank, *file);
    return true;
  }
  const bool joined = !mine_.joined.empty() && file->joined == mine_.joined;
  const bool has_met_this = std::ranges::find(file->seen, mine_.nonce) != file->seen.end();
  if (met != file->nonce && !joined && !has_met_this) return false;
  if (file->state == RankState::failed) throw CommunicationError(file->cause);
  // One that is through with joining may leave before others have seen that all are there.
  if (file->state == RankState::left) return true;
  throw CommunicationError("rank " + std::to_string(rank) + " (" + file->who() +
                           ") has ended while the ranks joined; its own output may say why");
}

void JobWatch::Implementation::require_same_size(int rank, const RankFile& file) const {
  if (file.size == size()) return;
  throw CommunicationError(
      "rank " + std::to_string(rank) + " (" + file.who() + ") is of a job of " + std::to_string(file.size) +
      " processes, rank " + std::to_string(rank_) + " (" + mine_.who() + ") of one of " +
      std::to_string(size()) + ", and both are in '" + folder_.string() +
      "': give all processes of a job the same number of ranks (WORLD_SIZE), and each job a name of its "
      "own by ENCORE_JOB_ID");
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
    if (first->seen.size() > mine && first->seen[mine] == mine_.nonce) {
      require_same_size(0, *first);
      mine_.joined = first->nonce;
    }
  }
  // An earlier job of the same name may have removed it with its own.
  if (!own || mine_.joined != before.joined || mine_.seen != before.seen) write(mine_);
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
  if (rank_ == 0) mine_.offer = to_hexadecimal(offer);
  write(mine_);
  try {
    meet();
  } catch (const CommunicationError& failure) {
    // So that the others do not take this rank's end for the reason.
    const auto own = RankFile::read(path(rank_));
    if (own && own->nonce == mine_.nonce) {
      mine_.state = RankState::failed;
      mine_.cause = failure.what();
      mine_.seen = met_;
      write(mine_);
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
      throw CommunicationError(
          missing + " of " + std::to_string(size()) + " did not come to '" + folder_.string() + "' within " +
          std::to_string(patience_.joining.count() / 1000) +
          " s: do all processes run, with the same folder? ENCORE_RENDEZVOUS sets it, and "
          "ENCORE_JOB_ID the name of the job in it");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(100));
  }
  const auto now = Clock::now();
  for (std::size_t other = 0; other < files.size(); ++other)
    peers_[other] = {std::move(*files[other]), now, {}};
}

}  // namespace encore::backend
