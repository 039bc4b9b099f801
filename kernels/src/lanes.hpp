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
};

}  // namespace encore::kernels::impl
