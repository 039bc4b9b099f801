// SPDX-License-Identifier: Apache-2.0
// What the driver's own state looks like after a capture that did not succeed.
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"

using namespace encore;
using namespace encore::backend;
using encore::tests::TestArray;

namespace {

using Cuda = Kokkos::Cuda;

struct AddTwo {
  double* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] += 2; }
};

void add_two(Stream<Cuda>& stream, const TestArray<Cuda, double>& array) {
  launch(stream, "test::add_two", {}, Range{static_cast<std::int64_t>(array.size())}, AddTwo{array.data()});
}

template <class Operation>
void check_refused(Stream<Cuda>& stream, const TestArray<Cuda, double>& array, const Operation& operation) {
  const std::vector<double> before = array.get();
  CHECK_THROWS_AS(RecordedGraph<Cuda>(stream, "refused",
                                      [&] {
                                        add_two(stream, array);
                                        if (stream.mode() == StreamMode::record) operation();
                                        add_two(stream, array);
                                      }),
                  CaptureError);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  CHECK(cudaStreamIsCapturing(stream.execution_space().cuda_stream(), &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusNone);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(stream.mode() == StreamMode::execute);
  CHECK(array.get() == before);
  RecordedGraph<Cuda> works(stream, "works", [&] { add_two(stream, array); });
  works.replay();
  std::vector<double> after = before;
  for (double& value : after) value += 2;
  CHECK(array.get() == after);
}

}  // namespace

TEST_CASE("a refused capture is ended, and the next one on the stream works") {
  Stream<Cuda> stream, other;
  TestArray<Cuda, double> array(stream, {1.0, 2.0, 3.0});
  double host = 0;
  const cudaStream_t native = stream.execution_space().cuda_stream();
  check_refused(stream, array, [&] { stream.copy_to_host(&host, array.data(), 8, "loss"); });
  check_refused(stream, array, [&] { stream.synchronize("norm"); });
  // Calls of somebody who does not go through the stream.
  check_refused(stream, array, [&] { check_cuda(cudaStreamSynchronize(native), "foreign synchronization"); });
  check_refused(stream, array, [&] { (void)cudaStreamSynchronize(native); });
  check_refused(stream, array, [&] {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, 1 << 20), "foreign allocation");
  });
  check_refused(stream, array, [&] { Allocation<Cuda>("grown inside", 1 << 20); });
}

TEST_CASE("graphs that come and go give their device memory back") {
  Stream<Cuda> stream;
  TestArray<Cuda, double> array(stream, {1.0, 2.0, 3.0});
  const auto record_and_drop = [&] {
    RecordedGraph<Cuda> graph(stream, "many", [&] {
      for (int i = 0; i < 2000; ++i) add_two(stream, array);
    });
    graph.replay();
    stream.synchronize("test");
  };
  for (int i = 0; i < 3; ++i) record_and_drop();
  const std::size_t before = available_memory<Cuda>();
  for (int i = 0; i < 20; ++i) record_and_drop();
  CHECK(available_memory<Cuda>() + (std::size_t(4) << 20) >= before);
}
