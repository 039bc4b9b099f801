// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <cstddef>
#include <string>

namespace encore::backend {

/// Owns `bytes` of the space's memory, aligned to 256 bytes. Move-only.
template <class Space>
class Allocation {
 public:
  Allocation() = default;
  /// Throws OutOfMemoryError naming `label` and the bytes when the memory is not there. Contents are undefined.
  Allocation(const std::string& label, std::size_t bytes);

  Allocation(Allocation&&) noexcept = default;
  Allocation& operator=(Allocation&&) noexcept = default;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  using Storage = Kokkos::View<std::byte*, typename Space::memory_space>;
  Storage storage_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Host memory that the device can copy from and to asynchronously (pinned on a GPU, plain elsewhere).
template <class Space>
class StagingAllocation {
 public:
  StagingAllocation() = default;
  StagingAllocation(const std::string& label, std::size_t bytes);

  std::byte* data() const { return storage_.data(); }
  std::size_t bytes() const { return storage_.size(); }

 private:
#if defined(KOKKOS_ENABLE_CUDA)
  using StagingSpace =
      std::conditional_t<is_host_space<Space>, Kokkos::HostSpace, Kokkos::CudaHostPinnedSpace>;
#else
  using StagingSpace = Kokkos::HostSpace;
#endif
  Kokkos::View<std::byte*, StagingSpace> storage_;
};

/// Bytes that can still be allocated in the space (on hosts: the system's and the control group's limit).
template <class Space>
std::size_t available_memory();

}  // namespace encore::backend
