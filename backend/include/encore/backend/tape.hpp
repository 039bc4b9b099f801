// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/dependences.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace encore::backend {

class TapeReplayer;

/// One kernel of a tape.
struct TapeOperation {
  /// Runs the functor for the work items [begin, end).
  using Chunk = void (*)(const void* functor, std::int64_t begin, std::int64_t end,
                         std::size_t scratch_bytes);

  const char* label;
  Chunk chunk;
  const void* functor;
  std::int64_t size;
  std::size_t scratch_bytes;
};

/// A recorded list of host kernels. Replaying it opens at most one parallel region. A thread waits for another one
/// only where a kernel touches bytes that an earlier one wrote (or writes bytes that an earlier one read): see
/// TapeReplayer. Who computes a work item never changes its result.
class Tape {
 public:
  using Chunk = TapeOperation::Chunk;

  Tape();
  ~Tape();
  Tape(Tape&&) noexcept;
  Tape& operator=(Tape&&) noexcept;

  /// Copies the functor and keeps it until the tape dies. A kernel without accesses depends on all others.
  /// Not after finish().
  template <class Functor>
  void append(const char* label, Accesses accesses, std::int64_t size, std::size_t scratch_bytes, Chunk chunk,
              const Functor& functor) {
    functors_.push_back(std::make_shared<const Functor>(functor));
    functor_bytes_ += sizeof(Functor);
    append_operation({label, chunk, functors_.back().get(), size, scratch_bytes}, accesses);
  }

  /// Ends the recording. The first replay does it where it has not been done.
  void finish();

  /// Runs every kernel once, on up to `threads` threads of one parallel region. The first replays on a number of
  /// threads measure and plan, which allocates; later ones do not. Not by two threads at a time. An exception of
  /// a kernel is passed on; what the other kernels did by then is undefined.
  void replay(int threads);

  std::size_t size() const { return operations_.size(); }
  /// Kernels on the longest chain of which each depends on the one before, less one: the barriers that a replay
  /// of the kernels by dependence level would need.
  std::size_t barriers() const;
  std::vector<std::string> labels() const;
  /// Host memory that the tape holds.
  std::size_t bytes() const;

 private:
  void append_operation(const TapeOperation& operation, Accesses accesses);

  std::vector<TapeOperation> operations_;
  std::vector<std::shared_ptr<const void>> functors_;
  std::size_t functor_bytes_ = 0;
  bool finished_ = false;
  std::unique_ptr<Dependences> dependences_;  ///< at one address, as the replayer refers to it
  std::unique_ptr<TapeReplayer> replayer_;
};

}  // namespace encore::backend
