// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/access.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace encore::backend {

/// Which operations of a list must be over before another one may begin, found from the bytes they touch: an
/// operation waits for the last writer of what it reads, and for the last writer and the readers since then of
/// what it writes.
class Dependences {
 public:
  /// Adds the next operation. Without accesses it may touch anything: it is kept apart from all others.
  void add(std::span<const Access> accesses);
  /// Gives back the memory that only add() needs. No operation may be added afterwards.
  void finish();

  std::size_t size() const { return ends_.size(); }
  /// In ascending order. What these wait for themselves is left out where that shows at once.
  std::span<const std::uint32_t> predecessors(std::size_t operation) const;
  /// Operations on the longest chain of which each waits for the one before.
  std::size_t levels() const { return levels_; }
  std::size_t bytes() const;

 private:
  /// A byte range whose bytes have the same history.
  struct Piece {
    const std::byte* end;
    std::int64_t writer;  ///< none: -1
    std::vector<std::uint32_t> readers;
  };
  using Pieces = std::map<const std::byte*, Piece>;

  void split_at(const std::byte* address);
  void note_read(const Access& access, std::uint32_t operation, std::vector<std::uint32_t>& found);
  void note_write(const Access& access, std::uint32_t operation, std::vector<std::uint32_t>& found);
  std::vector<std::uint32_t> all_since_fence() const;
  void append(std::vector<std::uint32_t> found);

  std::vector<std::uint32_t> predecessors_;  ///< of all operations, one after another
  std::vector<std::size_t> ends_;
  std::size_t levels_ = 0;

  Pieces pieces_;
  std::vector<std::uint32_t> level_;
  std::vector<bool> has_successor_;
  std::int64_t fence_ = -1;  ///< the last operation that may touch anything
};

}  // namespace encore::backend
