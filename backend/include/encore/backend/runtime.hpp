// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/process_rank.hpp>
#include <encore/backend/space.hpp>

#include <memory>
#include <vector>

namespace encore::backend {

/// Initialises Kokkos for a program that has no other reason to, and finalises it when destroyed. A program
/// that already runs Kokkos needs none.
class Runtime {
 public:
  /// `threads` 0 leaves the number of host threads to OpenMP. Throws DeviceError, with the reason, when this
  /// build includes CUDA and no usable GPU is visible (Kokkos itself would abort). A process of a job gets the GPU of
  /// its local rank, counted round those that it sees.
  explicit Runtime(int threads = 0, const ProcessRank& process = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

 private:
  std::unique_ptr<Kokkos::ScopeGuard> guard_;
};

/// The backends that this build contains, in the order serial, openmp, cuda.
std::vector<Backend> built_backends();

}  // namespace encore::backend
