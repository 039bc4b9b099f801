// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/runtime.hpp>

#if defined(KOKKOS_ENABLE_CUDA)
#include <encore/backend/launch_cuda.hpp>
#endif

namespace encore::backend {

namespace {

/// How many there are.
int require_usable_gpu() {
#if defined(KOKKOS_ENABLE_CUDA)
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  (void)cudaGetLastError();
  throw DeviceError(std::string("no usable GPU: this build includes CUDA, and CUDA says ") +
                    (status == cudaSuccess ? "there is no device" : cudaGetErrorString(status)) +
                    "; run it on a GPU node, or use a build without CUDA");
#else
  return 0;
#endif
}

}  // namespace

Runtime::Runtime(int threads, const ProcessRank& process) {
  const int gpus = require_usable_gpu();
  Kokkos::InitializationSettings settings;
  if (threads > 0) settings.set_num_threads(threads);
  if (gpus > 0 && !process.alone()) settings.set_device_id(process.local_rank % gpus);
  settings.set_disable_warnings(true);
  guard_ = std::make_unique<Kokkos::ScopeGuard>(settings);
}

Runtime::~Runtime() = default;

std::vector<Backend> built_backends() {
  std::vector<Backend> backends;
  ENCORE_IF_SERIAL(backends.push_back(Backend::serial);)
  ENCORE_IF_OPENMP(backends.push_back(Backend::openmp);)
  ENCORE_IF_CUDA(backends.push_back(Backend::cuda);)
  return backends;
}

}  // namespace encore::backend
