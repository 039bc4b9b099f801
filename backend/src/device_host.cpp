// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/device.hpp>

#include <fstream>

namespace encore::backend {

namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

}  // namespace

template <class Space>
std::string describe_device() {
  return processor_name() + ", " + std::to_string(Space().concurrency()) + " thread(s)";
}

ENCORE_IF_SERIAL(template std::string describe_device<Kokkos::Serial>();)
ENCORE_IF_OPENMP(template std::string describe_device<Kokkos::OpenMP>();)

}  // namespace encore::backend
