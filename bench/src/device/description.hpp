// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace encore::command {

/// What this build was made of.
struct BuildDescription {
  std::string kokkos;  ///< version
  std::string compiler;
  std::vector<std::string> backends;
  std::vector<std::string> libraries;  ///< vendor libraries beside Kokkos
};
BuildDescription describe_build();

struct DeviceDescription {
  std::string backend;
  std::string device;
  std::string blas;
};
/// One for each backend of this build. Needs a DeviceSession.
std::vector<DeviceDescription> describe_devices();

}  // namespace encore::command
