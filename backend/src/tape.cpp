// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/tape.hpp>

#include <algorithm>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace encore::backend {

void Tape::append_operation(const char* label, Accesses accesses, std::int64_t size, std::size_t scratch_bytes,
                            Chunk chunk, const void* functor) {
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

void Tape::run_share(int thread, int threads) const {
  for (const Operation& operation : operations_) {
    if (operation.barrier_before && threads > 1) {
#pragma omp barrier
    }
    const std::int64_t begin = operation.size * thread / threads;
    const std::int64_t end = operation.size * (thread + 1) / threads;
    if (begin < end) operation.chunk(operation.functor, begin, end, operation.scratch_bytes);
  }
}

void Tape::replay(int threads) const {
  if (threads <= 1) {
    run_share(0, 1);
    return;
  }
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  run_share(omp_get_thread_num(), omp_get_num_threads());
#else
  run_share(0, 1);
#endif
}

std::vector<std::string> Tape::labels() const {
  std::vector<std::string> labels;
  for (const Operation& operation : operations_) labels.emplace_back(operation.label);
  return labels;
}

}  // namespace encore::backend
