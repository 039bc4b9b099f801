// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/launch.hpp>
#include <encore/graph/executor.hpp>
#include <encore/graph/scalars.hpp>

#include "spaces.hpp"

#include <functional>
#include <string>
#include <vector>

namespace encore::tests {

/// destination = 2 * source + *rate, element by element.
struct ScaleAndAdd {
  double* destination;
  const double* source;
  const double* rate;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { destination[i] = 2 * source[i] + *rate; }
};

struct Accumulate {
  double* sum;
  const double* source;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { sum[i] += source[i]; }
};

/// A small program for tests of the graph layer: `layers` segments, each of a layer of its own, that turn `input`
/// through activations into `output`, then one that adds the output into `total`.
template <class Space>
class ChainProgram {
 public:
  static constexpr std::int64_t width = 37;

  explicit ChainProgram(backend::Device<Space>& device, int layers)
      : device_(&device),
        rate_(device.stream(), {"rate"}),
        input_(device.stream(), std::vector<double>(width, 1.0)),
        output_(device.stream(), std::vector<double>(width, -1.0)),
        total_(device.stream(), std::vector<double>(width, 0.0)) {
    using namespace encore::graph;
    const auto add = [&](const std::string& name, BufferKind kind) {
      return program.add_buffer({name, backend::DataType::float64, {width}, kind});
    };
    rate = program.add_buffer({"rate", backend::DataType::float64, {1}, BufferKind::scalar});
    input = add("input", BufferKind::input);
    output = add("output", BufferKind::metric);
    total = add("total", BufferKind::state);
    BufferId last = input;
    for (int layer = 0; layer < layers; ++layer) {
      const std::string name = "layer." + std::to_string(layer) + "/mlp";
      const BufferId next = layer + 1 == layers ? output : add(name + "/result", BufferKind::activation);
      add_segment(name + "/forward", layer, last, next);
      last = next;
    }
    const auto body = [from = output, to = total](Execution<Space>& x) {
      const auto* source = x.template pointer<const double>(from);
      auto* sum = x.template pointer<double>(to);
      backend::launch(x.stream(), "test::accumulate",
                      {backend::read(source, width), backend::write(sum, width)}, backend::Range{width},
                      Accumulate{sum, source});
    };
    program.add_segment({"total/update", Module::head, Phase::forward, -1, -1, {output, total}, {total}},
                        body);
    plan = plan_memory(program.outline());
    arena = backend::Allocation<Space>("arena", plan.arena_bytes);
  }

  void add_segment(const std::string& name, int layer, graph::BufferId from, graph::BufferId to) {
    program.add_segment({name, graph::Module::mlp, graph::Phase::forward, layer, -1, {from, rate}, {to}},
                        [from, to, r = rate](graph::Execution<Space>& x) {
                          const auto* source = x.template pointer<const double>(from);
                          auto* destination = x.template pointer<double>(to);
                          const auto* number = x.template pointer<const double>(r);
                          backend::launch(x.stream(), "test::scale_and_add",
                                          {backend::read(source, width), backend::read(number, 1),
                                           backend::write(destination, width)},
                                          backend::Range{width}, ScaleAndAdd{destination, source, number});
                        });
  }

  graph::Bindings bindings() const {
    graph::Bindings result(program.outline());
    result.bind(rate, rate_.device_data());
    result.bind(input, bytes(input_));
    result.bind(output, bytes(output_));
    result.bind(total, bytes(total_));
    result.bind_arena(plan, arena.data());
    return result;
  }

  void set_rate(double value) {
    rate_.set("rate", value);
    rate_.upload(device_->stream());
  }
  void set_input(double value) { input_.set(std::vector<double>(width, value)); }
  std::vector<double> output_values() const { return output_.get(); }
  std::vector<double> total_values() const { return total_.get(); }

  /// What the program computes, for one element.
  static double expected_output(double input, double rate, int layers) {
    for (int layer = 0; layer < layers; ++layer) input = 2 * input + rate;
    return input;
  }

  graph::Program<Space> program;
  graph::BufferId rate, input, output, total;
  graph::MemoryPlan plan;
  backend::Allocation<Space> arena;

 private:
  static std::byte* bytes(const TestArray<Space, double>& array) {
    return reinterpret_cast<std::byte*>(array.data());
  }

  backend::Device<Space>* device_;
  graph::Scalars<Space> rate_;
  TestArray<Space, double> input_, output_, total_;
};

}  // namespace encore::tests
