// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/memory.hpp>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace encore::backend {

namespace {

/// Linux grants more memory than there is and kills later, so the limits are asked for beforehand.
std::size_t system_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::size_t kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kibibytes * 1024;
  }
  return std::numeric_limits<std::size_t>::max();
}

std::size_t read_number(const char* path, std::size_t otherwise) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? value : otherwise;
}

std::size_t control_group_available() {
  constexpr auto unlimited = std::numeric_limits<std::size_t>::max();
  const std::size_t limit = read_number("/sys/fs/cgroup/memory.max", unlimited);
  const std::size_t used = read_number("/sys/fs/cgroup/memory.current", 0);
  return limit == unlimited || limit < used ? unlimited : limit - used;
}

}  // namespace

template <class Space>
std::size_t available_memory() {
  return std::min(system_available(), control_group_available());
}

ENCORE_IF_SERIAL(template std::size_t available_memory<Kokkos::Serial>();)
ENCORE_IF_OPENMP(template std::size_t available_memory<Kokkos::OpenMP>();)

}  // namespace encore::backend
