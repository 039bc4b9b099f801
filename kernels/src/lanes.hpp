// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shapes.hpp"

namespace encore::kernels::impl {

/// A team's threads in groups of `Lanes` neighbours of one warp, a power of two. A host team is one group of one lane.
template <int Lanes, class Team>
struct LaneGroups {
  static constexpr int lanes = is_host_team<Team> ? 1 : Lanes;
  static constexpr int groups = Team::size() / lanes;

  int group, lane;

  KOKKOS_FUNCTION explicit LaneGroups(const Team& team)
      : group(team.rank() / lanes), lane(team.rank() % lanes) {}

  /// Over the lanes of the caller's group, all of which must call it; every lane gets the sum.
  template <class A>
  KOKKOS_FUNCTION A sum(A value) const {
#if defined(__CUDA_ARCH__)
    constexpr unsigned all = lanes == 32 ? 0xffffffffU : (1U << (lanes % 32)) - 1U;
    const unsigned mask = all << (threadIdx.x % 32U / lanes * lanes);
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(mask, value, offset);
#endif
    return value;
  }

  /// The largest value of the caller's group.
  template <class A>
  KOKKOS_FUNCTION A max(A value) const {
#if defined(__CUDA_ARCH__)
    constexpr unsigned all = lanes == 32 ? 0xffffffffU : (1U << (lanes % 32)) - 1U;
    const unsigned mask = all << (threadIdx.x % 32U / lanes * lanes);
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      const A other = __shfl_xor_sync(mask, value, offset);
      value = other > value ? other : value;
    }
#endif
    return value;
  }
};

/// A warp of a GPU's team: all its lanes must call each function. On a host, where nothing calls them, one lane.
struct Warp {
  static constexpr int lanes = 32;

  struct Matches {
    int earlier;  ///< lanes before the caller's that have its key
    int all;      ///< lanes that have it
  };

  KOKKOS_FUNCTION static Matches matching(std::int32_t key) {
#if defined(__CUDA_ARCH__)
    const unsigned same = __match_any_sync(0xffffffffU, key);
    return {__popc(same & ((1U << (threadIdx.x % 32U)) - 1U)), __popc(same)};
#else
    (void)key;
    return {0, 1};
#endif
  }

  KOKKOS_FUNCTION static std::uint32_t largest(std::uint32_t value) {
#if defined(__CUDA_ARCH__)
    value = __reduce_max_sync(0xffffffffU, value);
#endif
    return value;
  }
  KOKKOS_FUNCTION static std::uint32_t smallest(std::uint32_t value) {
#if defined(__CUDA_ARCH__)
    value = __reduce_min_sync(0xffffffffU, value);
#endif
    return value;
  }

  /// Over the caller's lane and those before it.
  KOKKOS_FUNCTION static std::int32_t inclusive_sum(std::int32_t value) {
#if defined(__CUDA_ARCH__)
    for (int offset = 1; offset < lanes; offset *= 2) {
      const std::int32_t before = __shfl_up_sync(0xffffffffU, value, offset);
      if (static_cast<int>(threadIdx.x % 32U) >= offset) value += before;
    }
#endif
    return value;
  }

  KOKKOS_FUNCTION static std::int32_t of_last_lane(std::int32_t value) {
#if defined(__CUDA_ARCH__)
    value = __shfl_sync(0xffffffffU, value, lanes - 1);
#endif
    return value;
  }
};

}  // namespace encore::kernels::impl
