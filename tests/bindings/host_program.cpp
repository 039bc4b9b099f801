// SPDX-License-Identifier: Apache-2.0
// A program that initialises Kokkos itself and calls Encore through the C API; on CUDA with a stream and kernels of its
// own. It ends Kokkos while it still has a stream and a graph.
#include <Kokkos_Core.hpp>

#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

constexpr int elements = 1000;

#if defined(KOKKOS_ENABLE_CUDA)
__global__ void triple(float* values) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < elements) values[i] *= 3;
}

int launch_triple(void* native, void* values) {
  triple<<<(elements + 127) / 128, 128, 0, static_cast<cudaStream_t>(native)>>>(static_cast<float*>(values));
  return cudaGetLastError();
}
void* make_native() {
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  return stream;
}
void end_native(void* native) { CHECK(cudaStreamDestroy(static_cast<cudaStream_t>(native)) == cudaSuccess); }
#else
int launch_triple(void*, void* values) {
  for (int i = 0; i < elements; ++i) static_cast<float*>(values)[i] *= 3;
  return 0;
}
void* make_native() { return nullptr; }
void end_native(void*) {}
#endif

int triple_and_double(encore_stream* stream, void* values) {
  const encore_access access{values, elements * sizeof(float), 1};
  if (const int status = encore_launch(stream, "triple", launch_triple, values, &access, 1)) return status;
  return encore_add(stream, ENCORE_FLOAT32, values, values, values, elements);
}

int throws(encore_stream*, void*) { throw std::runtime_error("thrown by the caller"); }

}  // namespace

int main(int count, char** arguments) {
  const encore_backend backend = backend_of(count, arguments);
  void* native = nullptr;
  encore_runtime *runtime = nullptr, *second = nullptr;
  encore_stream* stream = nullptr;
  encore_graph* graph = nullptr;
  {
    const Kokkos::ScopeGuard kokkos;
    GOOD(encore_runtime_create(0, &runtime));
    GOOD(encore_runtime_create(0, &second));
    GOOD(encore_runtime_destroy(second));  // joins, and so ends nothing
    native = make_native();
    GOOD(encore_stream_create(runtime, backend, native, &stream));
    void* same = nullptr;
    GOOD(encore_stream_native(stream, &same));
    CHECK(same == native);

    Kokkos::View<float*> values("values", elements);
    Kokkos::deep_copy(values, 1.0F);
    GOOD(triple_and_double(stream, values.data()));  // a kernel runs once before it is recorded
    GOOD(encore_stream_synchronize(stream));
    GOOD(encore_graph_record(stream, "triple and double", triple_and_double, values.data(), &graph));
    for (int i = 0; i < 2; ++i) GOOD(encore_graph_replay(graph));
    std::vector<float> host(elements);
    GOOD(encore_copy_to_host(stream, host.data(), values.data(), elements * sizeof(float)));
    CHECK(host.front() == 216 && host.back() == 216);

    encore_graph* none = nullptr;
    BAD(encore_graph_record(stream, "throws", throws, nullptr, &none), ENCORE_ERROR_INTERNAL,
        "thrown by the caller");
    GOOD(encore_graph_replay(graph));
    GOOD(encore_stream_synchronize(stream));
    void* const legacy = reinterpret_cast<void*>(0x1);  // cudaStreamLegacy
    if (backend == ENCORE_CUDA) {
      encore_stream* refused = nullptr;
      BAD(encore_stream_create(runtime, backend, legacy, &refused), ENCORE_ERROR_DEVICE, "legacy");
    }
  }
  BAD(encore_graph_replay(graph), ENCORE_ERROR_USAGE, "ended together with Kokkos");
  BAD(encore_stream_synchronize(stream), ENCORE_ERROR_USAGE, "ended together with Kokkos");
  GOOD(encore_graph_destroy(graph));
  GOOD(encore_stream_destroy(stream));
  GOOD(encore_runtime_destroy(runtime));
  end_native(native);
  return report("host program");
}
