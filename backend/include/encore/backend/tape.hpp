// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/access.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace encore::backend {

/// A recorded list of host kernels. Replaying it opens one parallel region. Every thread has the same share of
/// every kernel, works on it piece by piece, and then helps the threads that are behind; it waits for the others
/// only where a kernel touches bytes that an earlier one wrote (or writes bytes that an earlier one read). Who
/// computes a work item never changes its result.
class Tape {
 public:
  /// Runs the functor for the work items [begin, end).
  using Chunk = void (*)(const void* functor, std::int64_t begin, std::int64_t end,
                         std::size_t scratch_bytes);

  Tape() = default;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;
  Tape(Tape&&) noexcept = default;
  Tape& operator=(Tape&&) noexcept = default;

  /// Copies the functor and keeps it until the tape dies. A kernel without accesses depends on all others.
  template <class Functor>
  void append(const char* label, Accesses accesses, std::int64_t size, std::size_t scratch_bytes, Chunk chunk,
              const Functor& functor) {
    static_assert(std::is_trivially_copyable_v<Functor> || std::is_copy_constructible_v<Functor>);
    functors_.push_back(std::make_shared<const Functor>(functor));
    append_operation(label, accesses, size, scratch_bytes, chunk, functors_.back().get());
  }

  /// Runs every kernel once, on `threads` threads of one parallel region (no region when it is 1). Allocates only
  /// when `threads` is not what it was. Not by two threads at a time.
  void replay(int threads);

  std::size_t size() const { return operations_.size(); }
  /// Barriers inside one replay, without the region's own end.
  std::size_t barriers() const { return barriers_; }
  std::vector<std::string> labels() const;

 private:
  struct Operation {
    const char* label;
    Chunk chunk;
    const void* functor;
    std::int64_t size;
    std::size_t scratch_bytes;
    bool barrier_before;
  };

  void append_operation(const char* label, Accesses accesses, std::int64_t size, std::size_t scratch_bytes,
                        Chunk chunk, const void* functor);
  void run_in_order() const;
  void run_with_others(int thread, int threads);
  void run_pieces(std::size_t operation, int share, int threads);

  /// How many items of its share of each operation have been taken, for one thread.
  using Taken = std::vector<std::atomic<std::int64_t>>;

  std::vector<Operation> operations_;
  std::vector<Taken> taken_;  ///< by thread
  std::vector<std::shared_ptr<const void>> functors_;
  std::vector<Access> since_barrier_;
  bool unknown_since_barrier_ = false;
  std::size_t barriers_ = 0;
};

}  // namespace encore::backend
