// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace encore::backend {
class Runtime;
}

namespace encore::command {

/// Kokkos, for as long as it lives. Without Kokkos headers, so that most of the command compiles without them.
class DeviceSession {
 public:
  /// Throws DeviceError as backend::Runtime does. `threads` 0: as OpenMP decides.
  explicit DeviceSession(int threads);
  ~DeviceSession();
  DeviceSession(const DeviceSession&) = delete;
  DeviceSession& operator=(const DeviceSession&) = delete;

 private:
  std::unique_ptr<backend::Runtime> runtime_;
};

}  // namespace encore::command
