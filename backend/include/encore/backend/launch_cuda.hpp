// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/branch_recorder.hpp>
#include <encore/backend/stream.hpp>
#include <encore/backend/team.hpp>

#include <cuda_runtime.h>

namespace encore::backend {

/// Throws DeviceError naming `what` and CUDA's own message unless `status` is success; clears the last error.
void check_cuda(cudaError_t status, const char* what);

namespace impl {

/// Kernels are launched by a plain `<<<>>>` of the functor, not by Kokkos::parallel_for: on an H200 a graph
/// node of Kokkos' launch costs 1.31 us against 0.77 us for this one, and no launch can take Kokkos' path
/// through shared constant memory, which a graph must not contain.
inline constexpr int range_threads = 256;

#if defined(__CUDACC__)

/// Lets the kernel after this one be put on the device, and waits until what this one was put there before is over
/// and its results can be seen. Both do nothing unless kernels were launched so (programmatic dependent launch).
__device__ inline void meet_neighbours() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class Functor>
__global__ void __launch_bounds__(range_threads)
    run_range(const __grid_constant__ Functor functor, std::int64_t size) {
  meet_neighbours();
  const std::int64_t i = std::int64_t(blockIdx.x) * range_threads + threadIdx.x;
  if (i < size) functor(i);
}

template <int Threads, class Functor>
__global__ void __launch_bounds__(Threads) run_teams(const __grid_constant__ Functor functor) {
  extern __shared__ __align__(16) std::byte scratch[];
  meet_neighbours();
  functor(CudaTeam<Threads>(scratch));
}

template <class Kernel>
void prime_cuda(Kernel* kernel, std::size_t scratch_bytes, const char* label) {
  cudaFuncAttributes attributes;  // Asking for them loads the kernel, which may not happen in a capture.
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), label);
  if (scratch_bytes > 48 * 1024)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(scratch_bytes)),
               label);
}

/// `programmatic`: the blocks may be put on the device while those of the kernel before still run.
template <class Kernel, class... Arguments>
void queue_on_cuda(Kernel* kernel, std::int64_t blocks, int threads, std::size_t scratch_bytes,
                   cudaStream_t stream, bool programmatic, const char* label, const Arguments&... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(static_cast<unsigned>(threads));
  launch.dynamicSmemBytes = scratch_bytes;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = programmatic ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&launch, kernel, arguments...), label);
}

#endif

}  // namespace impl

#if defined(__CUDACC__)

template <class Functor>
void launch_on_cuda(Stream<Kokkos::Cuda>& stream, const char* label, Accesses accesses, Range range,
                    const Functor& functor) {
  auto* kernel = &impl::run_range<Functor>;
  if (stream.mode() == StreamMode::list) return;
  if (stream.mode() == StreamMode::prime) return impl::prime_cuda(kernel, 0, label);
  const std::int64_t blocks = (range.size + impl::range_threads - 1) / impl::range_threads;
  const impl::NodeScope node(stream, label, accesses);
  impl::queue_on_cuda(kernel, blocks, impl::range_threads, 0, stream.execution_space().cuda_stream(),
                      node.follows_kernel(), label, functor, range.size);
}

template <int Threads, class Functor>
void launch_on_cuda(Stream<Kokkos::Cuda>& stream, const char* label, Accesses accesses, Teams<Threads> teams,
                    const Functor& functor) {
  auto* kernel = &impl::run_teams<Threads, Functor>;
  if (stream.mode() == StreamMode::list) return;
  if (stream.mode() == StreamMode::prime || teams.scratch_bytes > 48 * 1024)
    impl::prime_cuda(kernel, teams.scratch_bytes, label);
  if (stream.mode() == StreamMode::prime) return;
  const impl::NodeScope node(stream, label, accesses);
  impl::queue_on_cuda(kernel, teams.league, Threads, teams.scratch_bytes,
                      stream.execution_space().cuda_stream(), node.follows_kernel(), label, functor);
}

#endif

}  // namespace encore::backend
