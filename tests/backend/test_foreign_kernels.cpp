// SPDX-License-Identifier: Apache-2.0
// Kokkos kernels of a caller inside a recorded body.
#include <encore/backend/error.hpp>
#include <encore/backend/launch_kokkos.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"

#include <string>
#include <thread>

using namespace encore;
using namespace encore::backend;
using encore::tests::TestArray;

namespace {

struct AddOne {
  float* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] += 1; }
};

struct Sum {
  const float* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i, float& sum) const { sum += data[i]; }
};

template <class Space>
using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;

template <class Space>
void plain_kernel(Stream<Space>& stream, const TestArray<Space, float>& array) {
  Kokkos::parallel_for("user::plain",
                       Policy<Space>(stream.execution_space(), 0, static_cast<std::int64_t>(array.size())),
                       AddOne{array.data()});
}

template <class Space>
void own_kernel(Stream<Space>& stream, const TestArray<Space, float>& array) {
  launch(stream, "user::own", {write(array.data(), array.size())},
         Range{static_cast<std::int64_t>(array.size())}, AddOne{array.data()});
}

template <class Space, class Operation>
void check_refused(const std::string& named, const Operation& operation) {
  INFO(named);
  Stream<Space> stream;
  TestArray<Space, float> array(stream, {1.0F, 2.0F});
  std::string reason;
  try {
    RecordedGraph<Space>(stream, "time step", [&] {
      own_kernel(stream, array);
      operation(stream, array);
    });
  } catch (const CaptureError& error) {
    reason = error.what();
  }
  CAPTURE(reason);
  CHECK(reason.find("'time step'") != std::string::npos);
  CHECK(reason.find(named) != std::string::npos);
  CHECK(reason.find("backend::launch") != std::string::npos);
  CHECK(stream.mode() == StreamMode::execute);
  CHECK(array.get() == std::vector<float>{1.0F, 2.0F});
  // What is refused in a body is the caller's right outside of one.
  operation(stream, array);
  stream.synchronize("test");
}

}  // namespace

TEST_CASE_TEMPLATE(
    "a Kokkos kernel or copy that a recording would miss is refused by its label before it runs", Space,
    ENCORE_TEST_SPACES) {
  using Floats = Kokkos::View<float*, typename Space::memory_space>;
  check_refused<Space>("user::plain", [](auto& stream, auto& array) { plain_kernel<Space>(stream, array); });
  check_refused<Space>("user::sum", [](auto& stream, auto& array) {
    float sum = 0;
    Kokkos::parallel_reduce("user::sum", Policy<Space>(stream.execution_space(), 0, 2), Sum{array.data()},
                            sum);
  });
  check_refused<Space>("copied", [](auto& stream, auto&) {
    const Floats from(Kokkos::view_alloc(Kokkos::WithoutInitializing, "from"), 2),
        to(Kokkos::view_alloc(Kokkos::WithoutInitializing, "copied"), 2);
    Kokkos::deep_copy(stream.execution_space(), to, from);
  });
  check_refused<Space>("temporary", [](auto&, auto&) { const Floats view("temporary", 2); });
}

TEST_CASE_TEMPLATE("kernels of other threads go on while one records", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream, other;
  TestArray<Space, float> array(stream, {1.0F, 2.0F}), others(other, {5.0F});
  RecordedGraph<Space> graph(stream, "time step", [&] {
    own_kernel(stream, array);
    if (stream.mode() == StreamMode::prime) std::thread([&] { plain_kernel<Space>(other, others); }).join();
  });
  other.synchronize("test");
  CHECK(others.get() == std::vector<float>{6.0F});
  graph.replay();
  CHECK(array.get() == std::vector<float>{2.0F, 3.0F});
}

#if defined(KOKKOS_ENABLE_CUDA)
TEST_CASE("a launch of Encore's on a second stream runs while the first one's recording is prepared") {
  Stream<Kokkos::Cuda> stream, other;
  TestArray<Kokkos::Cuda, float> array(stream, {1.0F}), others(other, {5.0F});
  RecordedGraph<Kokkos::Cuda> graph(stream, "time step", [&] {
    own_kernel(stream, array);
    if (stream.mode() == StreamMode::prime) own_kernel(other, others);
  });
  other.synchronize("test");
  CHECK(others.get() == std::vector<float>{6.0F});
  graph.replay();
  CHECK(array.get() == std::vector<float>{2.0F});
}
#endif

TEST_CASE("a tool's callbacks are the same after a recording as before it") {
  namespace tools = Kokkos::Tools::Experimental;
  static int kernels;
  kernels = 0;
  const tools::EventSet before = tools::get_callbacks();
  tools::set_begin_parallel_for_callback([](const char*, std::uint32_t, std::uint64_t*) { ++kernels; });
  Stream<Kokkos::Serial> stream;
  TestArray<Kokkos::Serial, float> array(stream, {1.0F});
  CHECK_THROWS_AS(RecordedGraph<Kokkos::Serial>(stream, "time step",
                                                [&] { plain_kernel<Kokkos::Serial>(stream, array); }),
                  CaptureError);
  kernels = 0;
  plain_kernel<Kokkos::Serial>(stream, array);
  CHECK(kernels == 1);
  tools::set_callbacks(before);
}

TEST_CASE(
    "recordings of several threads at once leave a tool's callbacks as they were, also for later "
    "recordings") {
  namespace tools = Kokkos::Tools::Experimental;
  const tools::EventSet before = tools::get_callbacks();
  tools::set_begin_parallel_for_callback([](const char*, std::uint32_t, std::uint64_t*) {});
  const auto set = tools::get_callbacks().begin_parallel_for;
  const auto record = [] {
    Stream<Kokkos::Serial> stream;
    TestArray<Kokkos::Serial, float> array(stream, {1.0F});
    for (int i = 0; i < 50; ++i) {
      RecordedGraph<Kokkos::Serial> graph(stream, "time step", [&] { own_kernel(stream, array); });
      graph.replay();
    }
    CHECK(array.get() == std::vector<float>{51.0F});
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(record);
  for (std::thread& thread : threads) thread.join();
  CHECK((tools::get_callbacks().begin_parallel_for == set));
  record();
  Stream<Kokkos::Serial> stream;
  TestArray<Kokkos::Serial, float> array(stream, {1.0F});
  CHECK_THROWS_AS(RecordedGraph<Kokkos::Serial>(stream, "time step",
                                                [&] { plain_kernel<Kokkos::Serial>(stream, array); }),
                  CaptureError);
  CHECK((tools::get_callbacks().begin_parallel_for == set));
  tools::set_callbacks(before);
}

TEST_CASE_TEMPLATE("a Kokkos kernel inside launch_kokkos is recorded and replayed", Space,
                   ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, float> array(stream, {1.0F, 2.0F});
  const auto step = [&] {
    own_kernel(stream, array);
    launch_kokkos(stream, "user::library", {write(array.data(), array.size())},
                  [&] { plain_kernel<Space>(stream, array); });
  };
  step();  // Kokkos prepares a kernel where it is first used, which a capture would refuse.
  stream.synchronize("test");
  RecordedGraph<Space> graph(stream, "time step", step);
  CHECK(array.get() == std::vector<float>{3.0F, 4.0F});
  graph.replay();
  graph.replay();
  CHECK(array.get() == std::vector<float>{7.0F, 8.0F});
}
