// SPDX-License-Identifier: Apache-2.0
#include "rotation.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/runtime.hpp>

#include <cstdio>

// Four turns by a right angle are none, and four doublings make sixteen.
int main() {
  try {
    const encore::backend::Runtime runtime;
    const std::vector<float> before = {1, 2, -3, 0.5F};
    const std::vector<float> after = turned_and_doubled(before, 4);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (after[i] == 16 * before[i]) continue;
      std::printf("value %zu is %g, expected %g\n", i, after[i], 16 * before[i]);
      return 1;
    }
    std::printf("four replays of a CUDA kernel and one of Encore's: as expected\n");
    return 0;
  } catch (const encore::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
