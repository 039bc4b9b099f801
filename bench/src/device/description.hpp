// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/memory_plan.hpp>
#include <encore/model/files/configuration.hpp>

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

/// What training with the configuration will need, found without allocating it. Needs a DeviceSession. Throws
/// DeviceError when this build lacks the configuration's backend.
graph::MemoryPlan predict_memory(const model::Configuration& configuration);

}  // namespace encore::command
