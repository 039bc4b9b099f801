// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/device.hpp>
#include <encore/backend/launch_cuda.hpp>

namespace encore::backend {

template <>
std::string describe_device<Kokkos::Cuda>() {
  int device = 0;
  cudaDeviceProp properties;
  int driver = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
  check_cuda(cudaDriverGetVersion(&driver), "asking for the driver's version");
  return std::string(properties.name) + ", " + std::to_string(properties.totalGlobalMem >> 20) + " MiB, " +
         std::to_string(properties.multiProcessorCount) + " multiprocessors, CUDA driver " +
         std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10);
}

}  // namespace encore::backend
