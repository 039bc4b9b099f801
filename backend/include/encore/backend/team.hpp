// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace encore::backend {

/// Launch shape: one work item per index; the functor is called as `functor(std::int64_t index)`.
struct Range {
  std::int64_t size;
};

/// Launch shape: `league` teams of `Threads` threads (one thread on a host), each with `scratch_bytes` of
/// fast memory; the functor is called as `functor(team)` by every thread of the team.
template <int Threads>
struct Teams {
  static_assert(Threads % 32 == 0 && Threads <= 1024);
  std::int64_t league;
  std::size_t scratch_bytes = 0;
};

/// A team of one thread: what a host core runs.
class HostTeam {
 public:
  KOKKOS_FUNCTION HostTeam(std::int64_t league_rank, std::byte* scratch)
      : league_rank_(league_rank), scratch_(scratch) {}

  KOKKOS_FUNCTION std::int64_t league_rank() const { return league_rank_; }
  KOKKOS_FUNCTION static constexpr int rank() { return 0; }
  KOKKOS_FUNCTION static constexpr int size() { return 1; }
  KOKKOS_FUNCTION void barrier() const {}

  /// Sum or maximum over the team; every thread gets the result.
  template <class T>
  KOKKOS_FUNCTION T sum(T value) const {
    return value;
  }
  template <class T>
  KOKKOS_FUNCTION T max(T value) const {
    return value;
  }

  /// Calls `body(i)` for 0 <= i < count, shared out over the team. The calls must be independent of each
  /// other: sums go through sum_over.
  template <class Body>
  KOKKOS_FUNCTION void for_each(std::int64_t count, const Body& body) const {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) body(i);
  }

  /// Sum or maximum of `term(i)` over 0 <= i < count, of type T, in every thread.
  template <class T, class Term>
  KOKKOS_FUNCTION T sum_over(std::int64_t count, const Term& term) const {
    T total(0);
    const Term local = term;  // What a copy holds cannot change under the loop, which can then be vectorised.
#pragma omp simd reduction(+ : total)
    for (std::int64_t i = 0; i < count; ++i) total += local(i);
    return total;
  }
  template <class T, class Term>
  KOKKOS_FUNCTION T max_over(std::int64_t count, T lowest, const Term& term) const {
    T largest = lowest;
    const Term local = term;
#pragma omp simd reduction(max : largest)
    for (std::int64_t i = 0; i < count; ++i) {
      const T value = local(i);
      largest = value > largest ? value : largest;
    }
    return largest;
  }

  template <class T>
  KOKKOS_FUNCTION T* scratch(std::size_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(scratch_ + offset_bytes);
  }

 private:
  std::int64_t league_rank_;
  std::byte* scratch_;
};

#if defined(KOKKOS_ENABLE_CUDA)

/// A CUDA thread block. Every thread of the block must reach each call; `body` and `term` run per thread.
/// The members are also compiled for the host, where nothing calls them.
template <int Threads>
class CudaTeam {
 public:
  KOKKOS_FUNCTION explicit CudaTeam(std::byte* scratch) : scratch_(scratch) {}

  KOKKOS_FUNCTION std::int64_t league_rank() const {
    KOKKOS_IF_ON_DEVICE((return blockIdx.x;))
    KOKKOS_IF_ON_HOST((return 0;))
  }
  KOKKOS_FUNCTION int rank() const {
    KOKKOS_IF_ON_DEVICE((return static_cast<int>(threadIdx.x);))
    KOKKOS_IF_ON_HOST((return 0;))
  }
  KOKKOS_FUNCTION static constexpr int size() { return Threads; }
  KOKKOS_FUNCTION void barrier() const { KOKKOS_IF_ON_DEVICE((__syncthreads();)) }

  template <class T>
  KOKKOS_FUNCTION T sum(T value) const {
    return reduce(
        value, [](T a, T b) { return a + b; }, T(0));
  }
  template <class T>
  KOKKOS_FUNCTION T max(T value) const {
    return reduce(
        value, [](T a, T b) { return a > b ? a : b; }, value);
  }

  template <class Body>
  KOKKOS_FUNCTION void for_each(std::int64_t count, const Body& body) const {
    for (std::int64_t i = rank(); i < count; i += Threads) body(i);
  }

  template <class T, class Term>
  KOKKOS_FUNCTION T sum_over(std::int64_t count, const Term& term) const {
    T total(0);
    for (std::int64_t i = rank(); i < count; i += Threads) total += term(i);
    return sum(total);
  }
  template <class T, class Term>
  KOKKOS_FUNCTION T max_over(std::int64_t count, T lowest, const Term& term) const {
    T largest = lowest;
    for (std::int64_t i = rank(); i < count; i += Threads) {
      const T value = term(i);
      largest = value > largest ? value : largest;
    }
    return max(largest);
  }

  template <class T>
  KOKKOS_FUNCTION T* scratch(std::size_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(scratch_ + offset_bytes);
  }

 private:
  /// Butterfly inside each warp, then over the warps' results: a fixed order, so replays agree bit for bit.
  template <class T, class Operation>
  KOKKOS_FUNCTION T reduce(T value, const Operation& operation, [[maybe_unused]] T identity) const {
#if defined(__CUDA_ARCH__)
    constexpr int warps = Threads / 32;
    for (int offset = 16; offset > 0; offset /= 2)
      value = operation(value, __shfl_xor_sync(0xffffffffU, value, offset));
    if constexpr (warps > 1) {
      __shared__ T partial[warps];
      const int lane = threadIdx.x % 32;
      if (lane == 0) partial[threadIdx.x / 32] = value;
      __syncthreads();
      value = lane < warps ? partial[lane] : identity;
      for (int offset = 16; offset > 0; offset /= 2)
        value = operation(value, __shfl_xor_sync(0xffffffffU, value, offset));
      __syncthreads();
    }
#else
    (void)operation;
#endif
    return value;
  }

  std::byte* scratch_;
};

#endif

}  // namespace encore::backend
