// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace encore::backend {
class Runtime;
struct ProcessRank;
}  // namespace encore::backend

namespace encore::command {

/// Kokkos, for as long as it lives; nothing where it runs already. Without Kokkos headers, so that most of the command compiles without them.
class DeviceSession {
 public:
  /// Throws DeviceError as backend::Runtime does. `threads` 0: as OpenMP decides.
  explicit DeviceSession(int threads);
  /// Of a process of a job.
  DeviceSession(int threads, const backend::ProcessRank& process);
  ~DeviceSession();
  DeviceSession(const DeviceSession&) = delete;
  DeviceSession& operator=(const DeviceSession&) = delete;

 private:
  std::unique_ptr<backend::Runtime> runtime_;
};

}  // namespace encore::command
