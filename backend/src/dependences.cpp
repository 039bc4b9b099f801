// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/dependences.hpp>

#include <algorithm>
#include <iterator>

namespace encore::backend {

std::span<const std::uint32_t> Dependences::predecessors(std::size_t operation) const {
  const std::size_t begin = operation == 0 ? 0 : ends_[operation - 1];
  return {predecessors_.data() + begin, ends_[operation] - begin};
}

std::size_t Dependences::bytes() const {
  return predecessors_.capacity() * sizeof(std::uint32_t) + ends_.capacity() * sizeof(std::size_t);
}

void Dependences::finish() {
  pieces_.clear();
  level_ = {};
  has_successor_ = {};
  predecessors_.shrink_to_fit();
  ends_.shrink_to_fit();
}

void Dependences::split_at(const std::byte* address) {
  auto piece = pieces_.upper_bound(address);
  if (piece == pieces_.begin()) return;
  --piece;
  if (piece->first == address || piece->second.end <= address) return;
  Piece upper = piece->second;
  piece->second.end = address;
  pieces_.emplace_hint(std::next(piece), address, std::move(upper));
}

void Dependences::note_read(const Access& access, std::uint32_t operation,
                            std::vector<std::uint32_t>& found) {
  split_at(access.begin);
  split_at(access.end);
  const std::byte* reached = access.begin;
  auto piece = pieces_.lower_bound(access.begin);
  while (reached < access.end) {
    if (piece == pieces_.end() || piece->first > reached) {
      const std::byte* end = piece == pieces_.end() ? access.end : std::min(access.end, piece->first);
      piece = pieces_.emplace_hint(piece, reached, Piece{end, -1, {}});
    }
    Piece& history = piece->second;
    if (history.writer >= 0) found.push_back(static_cast<std::uint32_t>(history.writer));
    if (history.readers.empty() || history.readers.back() != operation) history.readers.push_back(operation);
    reached = history.end;
    ++piece;
  }
}

void Dependences::note_write(const Access& access, std::uint32_t operation,
                             std::vector<std::uint32_t>& found) {
  split_at(access.begin);
  split_at(access.end);
  auto piece = pieces_.lower_bound(access.begin);
  while (piece != pieces_.end() && piece->first < access.end) {
    const Piece& history = piece->second;
    if (history.writer >= 0) found.push_back(static_cast<std::uint32_t>(history.writer));
    found.insert(found.end(), history.readers.begin(), history.readers.end());
    piece = pieces_.erase(piece);
  }
  pieces_.emplace_hint(piece, access.begin, Piece{access.end, operation, {}});
}

std::vector<std::uint32_t> Dependences::all_since_fence() const {
  std::vector<std::uint32_t> found;
  for (auto operation = static_cast<std::size_t>(std::max<std::int64_t>(fence_, 0)); operation < size();
       ++operation)
    if (!has_successor_[operation]) found.push_back(static_cast<std::uint32_t>(operation));
  return found;
}

void Dependences::append(std::vector<std::uint32_t> found) {
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  std::vector<std::uint32_t> before;
  std::uint32_t level = 0;
  for (const std::uint32_t predecessor : found) {
    level = std::max(level, level_[predecessor]);
    has_successor_[predecessor] = true;
    const auto earlier = predecessors(predecessor);
    before.insert(before.end(), earlier.begin(), earlier.end());
  }
  std::sort(before.begin(), before.end());
  std::set_difference(found.begin(), found.end(), before.begin(), before.end(),
                      std::back_inserter(predecessors_));
  ends_.push_back(predecessors_.size());
  level_.push_back(level + 1);
  has_successor_.push_back(false);
  levels_ = std::max<std::size_t>(levels_, level + 1);
}

void Dependences::add(std::span<const Access> accesses) {
  const auto operation = static_cast<std::uint32_t>(size());
  if (accesses.empty()) {
    append(all_since_fence());
    pieces_.clear();
    fence_ = operation;
    return;
  }
  std::vector<std::uint32_t> found;
  // An operation may read what it writes: its reads come first, so that they find the writer before it.
  for (const Access& access : accesses)
    if (!access.writes && access.begin < access.end) note_read(access, operation, found);
  for (const Access& access : accesses)
    if (access.writes && access.begin < access.end) note_write(access, operation, found);
  std::erase(found, operation);
  if (found.empty() && fence_ >= 0) found.push_back(static_cast<std::uint32_t>(fence_));
  append(std::move(found));
}

}  // namespace encore::backend
