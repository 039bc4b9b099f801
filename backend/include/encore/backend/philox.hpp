// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/bfloat16.hpp>

#include <cstdint>

namespace encore::backend {

struct PhiloxCounter {
  std::uint32_t word[4];
};
struct PhiloxKey {
  std::uint32_t word[2];
};

/// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
/// Equal on every backend; agrees with the known answers of Random123.
ENCORE_HOST_DEVICE inline PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  constexpr std::uint32_t multiplier0 = 0xD2511F53U;
  constexpr std::uint32_t multiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t weyl0 = 0x9E3779B9U;
  constexpr std::uint32_t weyl1 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t(multiplier0) * counter.word[0];
    const std::uint64_t product1 = std::uint64_t(multiplier1) * counter.word[2];
    counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key.word[0],
                static_cast<std::uint32_t>(product1),
                static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key.word[1],
                static_cast<std::uint32_t>(product0)}};
    key.word[0] += weyl0;
    key.word[1] += weyl1;
  }
  return counter;
}

/// Where a named random stream stands; lives in device memory. The offset counts advances (steps).
struct RandomState {
  std::uint64_t seed;
  std::uint64_t offset;
};

/// Four random words for elements [4 * quad, 4 * quad + 4) of what segment `segment` draws at the state's
/// offset. The same on every backend, launch shape and capture policy.
ENCORE_HOST_DEVICE inline PhiloxCounter random_words(const RandomState& state, std::uint32_t segment,
                                                     std::uint64_t quad) {
  return philox4x32_10(
      {{static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(quad >> 32), segment,
        static_cast<std::uint32_t>(state.offset)}},
      {{static_cast<std::uint32_t>(state.seed),
        static_cast<std::uint32_t>(state.seed >> 32) ^ static_cast<std::uint32_t>(state.offset >> 32)}});
}

/// Uniform in [0, 1) with 24 random bits, so that every value is exact in float.
ENCORE_HOST_DEVICE inline float uniform_of(std::uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0F / 16777216.0F);
}

/// Uniform in [0, 1) for one element; prefer random_words where four neighbours are needed.
ENCORE_HOST_DEVICE inline float random_uniform(const RandomState& state, std::uint32_t segment,
                                               std::uint64_t element) {
  return uniform_of(random_words(state, segment, element / 4).word[element % 4]);
}

}  // namespace encore::backend
