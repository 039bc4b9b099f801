// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <cstring>

namespace encore::backend {

/// Copies from memory to a team's scratch that go on while the thread that started them computes (cp.async in the PTX
/// ISA). A thread waits for its own ones only. Elsewhere than on a GPU they are done at once.
struct AsyncCopy {
  /// 16 bytes, both addresses multiples of that.
  KOKKOS_FUNCTION static void start(void* scratch, const void* memory) {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(scratch))),
                 "l"(memory)
                 : "memory");
#else
    std::memcpy(scratch, memory, 16);
#endif
  }

  /// Ends a group: what this thread started since the end of the last one.
  KOKKOS_FUNCTION static void end_group() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }

  /// Waits for all groups but the `Latest` last ones.
  template <int Latest>
  KOKKOS_FUNCTION static void wait() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(Latest) : "memory");
#endif
  }
};

}  // namespace encore::backend
