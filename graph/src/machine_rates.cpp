// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/graph/machine_rates.hpp>
#include <encore/kernels/initialization.hpp>

#include "replay_timer.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

namespace encore::graph {

struct CopyKernel {
  float* to;
  const float* from;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { to[i] = from[i]; }
};

struct TinyKernel {
  float* value;
  KOKKOS_FUNCTION void operator()(std::int64_t) const { *value = 0.5F * *value + 1.0F; }
};

namespace {

constexpr int samples = 5;

/// Milliseconds of one `body`, replayed `repeats` times in a row.
template <class Space>
double replayed_milliseconds(backend::Device<Space>& device, int repeats, const std::function<void()>& body) {
  backend::RecordedGraph<Space> graph(device.stream(), "profile: rates", [&] {
    for (int i = 0; i < repeats; ++i) body();
  });
  const auto replay = [&] { graph.replay(); };
  replay();
  const double milliseconds =
      median_of_samples(samples, 200, [&] { return device_milliseconds<Space>(device, replay, replay); });
  return std::max(milliseconds, 1e-6) / repeats;
}

/// Of a product of two square matrices of this size, `repeats` times in a row.
template <class Space, class T>
double flops_per_second(backend::Device<Space>& device, std::int64_t size, int repeats) {
  const auto count = static_cast<std::size_t>(size * size);
  backend::Allocation<Space> memory("profile: matrices", 3 * count * sizeof(T));
  auto* data = reinterpret_cast<T*>(memory.data());
  auto& stream = device.stream();
  // Numbers without structure: a processor that multiplies zeros draws less power, and runs faster.
  kernels::fill_normal<Space, T>(stream, backend::Vector<T, Space>(data, 2 * count), 0.0, 1.0, 1, 0);
  const double milliseconds = replayed_milliseconds<Space>(device, repeats, [&] {
    device.blas().template multiply<T, T>(
        stream, "profile::product", backend::Transpose::no, {data, size, size, size}, backend::Transpose::yes,
        {data + count, size, size, size}, {data + 2 * count, size, size, size});
  });
  const auto edge = static_cast<double>(size);
  return 2 * edge * edge * edge / (1e-3 * milliseconds);
}

/// The best of some sizes. On a GPU each runs for a few milliseconds: long enough to be busy everywhere, and as in a
/// step too short for the limit on its power to slow it down for good.
template <class Space, class T>
double flops_per_second(backend::Device<Space>& device) {
  if constexpr (backend::is_host_space<Space>) return flops_per_second<Space, T>(device, 384, 1);
  double best = 0;
  for (const auto& [size, repeats] :
       std::vector<std::pair<std::int64_t, int>>{{1024, 100}, {4096, 16}, {8192, 2}})
    if (best == 0 ||
        12 * static_cast<std::size_t>(size * size) * sizeof(T) < backend::available_memory<Space>())
      best = std::max(best, flops_per_second<Space, T>(device, size, repeats));
  return best;
}

/// Of the space's own copy, or of a kernel that copies, whichever is faster.
template <class Space>
double bytes_per_second(backend::Device<Space>& device) {
  constexpr std::size_t wanted = std::size_t{1} << (backend::is_host_space<Space> ? 26 : 30);
  constexpr int repeats = backend::is_host_space<Space> ? 1 : 10;
  constexpr std::size_t least = std::size_t{1} << 16;
  const std::size_t count = std::clamp(backend::available_memory<Space>() / 8, least, wanted) / sizeof(float);
  const std::size_t bytes = count * sizeof(float);
  backend::Allocation<Space> source("profile: source of copies", bytes), copies("profile: copies", bytes);
  const auto* from = reinterpret_cast<const float*>(source.data());
  auto* to = reinterpret_cast<float*>(copies.data());
  auto& stream = device.stream();
  kernels::fill_uniform<Space, float>(
      stream, backend::Vector<float, Space>(reinterpret_cast<float*>(source.data()), count), -1.0, 1.0, 1, 1);
  const double by_copy =
      replayed_milliseconds<Space>(device, repeats, [&] { stream.copy(to, from, bytes, "profile::copy"); });
  const double by_kernel = replayed_milliseconds<Space>(device, repeats, [&] {
    backend::launch(stream, "profile::copy_kernel", {backend::read(from, count), backend::write(to, count)},
                    backend::Range{static_cast<std::int64_t>(count)}, CopyKernel{to, from});
  });
  return 2 * static_cast<double>(bytes) / (1e-3 * std::min(by_copy, by_kernel));
}

template <class Space>
double seconds_per_node(backend::Device<Space>& device) {
  constexpr int chain = 512;
  backend::Allocation<Space> memory("profile: value", sizeof(float));
  auto* value = reinterpret_cast<float*>(memory.data());
  auto& stream = device.stream();
  kernels::fill_constant<Space, float>(stream, backend::Vector<float, Space>(value, 1), 1.0);
  const double milliseconds = replayed_milliseconds<Space>(device, chain, [&] {
    backend::launch(stream, "profile::tiny", {backend::write(value, 1)}, backend::Range{1},
                    TinyKernel{value});
  });
  return 1e-3 * milliseconds;
}

template <class Space>
double flops_per_second(backend::Device<Space>& device, backend::DataType type) {
  if constexpr (backend::backend_of<Space>() == backend::Backend::serial)
    if (type == backend::DataType::float64) return flops_per_second<Space, double>(device);
  if (type == backend::DataType::bfloat16) return flops_per_second<Space, backend::bfloat16>(device);
  return flops_per_second<Space, float>(device);
}

bool is_floating_point(backend::DataType type) {
  using enum backend::DataType;
  return type == float64 || type == float32 || type == bfloat16;
}

}  // namespace

template <class Space>
MachineRates measure_rates(backend::Device<Space>& device, backend::DataType type) {
  MachineRates rates;
  rates.flops_per_second = flops_per_second<Space>(device, type);
  rates.bytes_per_second = bytes_per_second<Space>(device);
  rates.seconds_per_node = seconds_per_node<Space>(device);
  return rates;
}

backend::DataType product_type(const Outline& outline) {
  const auto& buffers = outline.buffers();
  const auto first = [&](const auto& holds) { return std::ranges::find_if(buffers, holds); };
  auto found = first([](const Buffer& buffer) {
    return buffer.kind == BufferKind::parameter && is_floating_point(buffer.type);
  });
  if (found == buffers.end())
    found = first([](const Buffer& buffer) { return is_floating_point(buffer.type); });
  return found == buffers.end() ? backend::DataType::float32 : found->type;
}

#define ENCORE_INSTANTIATE(SPACE) \
  template MachineRates measure_rates(backend::Device<SPACE>&, backend::DataType);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::graph
