// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/launch_cuda.hpp>
#include <encore/backend/memory.hpp>

namespace encore::backend {

template <>
std::size_t available_memory<Kokkos::Cuda>() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free device memory");
  return free_bytes;
}

}  // namespace encore::backend
