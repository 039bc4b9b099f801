// SPDX-License-Identifier: Apache-2.0
#include "description.hpp"

#include <encore/backend/blas.hpp>
#include <encore/backend/device.hpp>
#include <encore/backend/runtime.hpp>

namespace encore::command {

namespace {

std::string compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#elif defined(__GNUC__)
  return "GNU " __VERSION__;
#else
  return "unknown";
#endif
}

template <class Space>
void append_description(std::vector<DeviceDescription>& descriptions) {
  backend::Stream<Space> stream;
  const backend::Blas<Space> blas(stream);
  descriptions.push_back({std::string(backend::name_of(backend::backend_of<Space>())),
                          backend::describe_device<Space>(), blas.description()});
}

}  // namespace

BuildDescription describe_build() {
  BuildDescription build;
  build.kokkos = std::to_string(KOKKOS_VERSION / 10000) + "." + std::to_string(KOKKOS_VERSION / 100 % 100) +
                 "." + std::to_string(KOKKOS_VERSION % 100);
  build.compiler = compiler();
  for (const backend::Backend backend : backend::built_backends())
    build.backends.emplace_back(name_of(backend));
  if (ENCORE_HAVE_OPENBLAS) build.libraries.emplace_back("OpenBLAS");
  if (ENCORE_HAVE_CUDA) build.libraries.emplace_back("cuBLASLt " ENCORE_CUDA_VERSION);
  if (ENCORE_HAVE_CUDNN) build.libraries.emplace_back("cuDNN");
  if (ENCORE_HAVE_CUTLASS) build.libraries.emplace_back("CUTLASS");
  if (ENCORE_HAVE_NCCL) build.libraries.emplace_back("NCCL");
  if (ENCORE_HAVE_PCRE2) build.libraries.emplace_back("PCRE2");
  if (ENCORE_HAVE_UTF8PROC) build.libraries.emplace_back("utf8proc");
  return build;
}

std::vector<DeviceDescription> describe_devices() {
  std::vector<DeviceDescription> descriptions;
#define ENCORE_DESCRIBE(SPACE) append_description<SPACE>(descriptions);
  ENCORE_FOR_EACH_SPACE(ENCORE_DESCRIBE)
#undef ENCORE_DESCRIBE
  return descriptions;
}

}  // namespace encore::command
