// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/tape.hpp>

#include <algorithm>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace encore::backend {

void Tape::append_operation(const char* label, Accesses accesses, std::int64_t size,
                            std::size_t scratch_bytes, Chunk chunk, const void* functor) {
  const bool unknown = accesses.size() == 0;
  bool barrier = (unknown && !operations_.empty()) || unknown_since_barrier_;
  for (auto access = accesses.begin(); !barrier && access != accesses.end(); ++access)
    barrier = std::any_of(since_barrier_.begin(), since_barrier_.end(),
                          [&](const Access& earlier) { return conflict(earlier, *access); });
  if (barrier) {
    since_barrier_.clear();
    unknown_since_barrier_ = false;
    ++barriers_;
  }
  since_barrier_.insert(since_barrier_.end(), accesses.begin(), accesses.end());
  unknown_since_barrier_ = unknown_since_barrier_ || unknown;
  operations_.push_back({label, chunk, functor, size, scratch_bytes, barrier});
}

void Tape::run_in_order() const {
  for (const Operation& operation : operations_)
    operation.chunk(operation.functor, 0, operation.size, operation.scratch_bytes);
}

void Tape::run_pieces(std::size_t index, int share, int threads) {
  // Pieces are small enough that two threads finish together, and large enough that taking one costs nothing.
  constexpr std::int64_t pieces_of_a_share = 8;
  const Operation& operation = operations_[index];
  const std::int64_t begin = operation.size * share / threads;
  const std::int64_t count = operation.size * (share + 1) / threads - begin;
  const std::int64_t piece = std::max<std::int64_t>(1, (count + pieces_of_a_share - 1) / pieces_of_a_share);
  std::atomic<std::int64_t>& taken = taken_[static_cast<std::size_t>(share)][index];
  // The barriers order memory; the counter only has to be exact.
  while (taken.load(std::memory_order_relaxed) < count) {
    const std::int64_t first = taken.fetch_add(piece, std::memory_order_relaxed);
    if (first >= count) return;
    operation.chunk(operation.functor, begin + first, begin + std::min(first + piece, count),
                    operation.scratch_bytes);
  }
}

void Tape::run_with_others(int thread, int threads) {
  for (std::size_t index = 0; index < operations_.size(); ++index) {
    if (operations_[index].barrier_before) {
#pragma omp barrier
    }
    for (int other = 0; other < threads; ++other) run_pieces(index, (thread + other) % threads, threads);
  }
}

void Tape::replay(int threads) {
#if defined(_OPENMP)
  if (threads > 1) {
    if (taken_.size() != static_cast<std::size_t>(threads) || taken_.front().size() != operations_.size()) {
      taken_.clear();
      for (int thread = 0; thread < threads; ++thread) taken_.emplace_back(operations_.size());
    }
#pragma omp parallel num_threads(threads)
    {
      // OpenMP may grant fewer threads than shares; those that there are take them all.
      const int thread = omp_get_thread_num();
      for (int share = thread; share < threads; share += omp_get_num_threads())
        for (auto& taken : taken_[static_cast<std::size_t>(share)]) taken.store(0, std::memory_order_relaxed);
#pragma omp barrier
      run_with_others(thread, threads);
    }
    return;
  }
#endif
  run_in_order();
}

std::vector<std::string> Tape::labels() const {
  std::vector<std::string> labels;
  for (const Operation& operation : operations_) labels.emplace_back(operation.label);
  return labels;
}

}  // namespace encore::backend
