// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/program.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace encore::model {

/// Addresses that no memory stands behind, one stretch for each buffer: enough for kernels that do not run.
template <class Space>
graph::Bindings imaginary_bindings(const graph::Outline& outline, const graph::MemoryPlan& plan) {
  constexpr std::uintptr_t spacing = graph::MemoryPlan::alignment;
  graph::Bindings bindings(outline);
  std::uintptr_t next = std::uintptr_t{1} << 40;
  const auto take = [&](std::size_t bytes) {
    auto* address = reinterpret_cast<std::byte*>(next);
    next += (bytes + spacing) / spacing * spacing;
    return address;
  };
  for (std::size_t index = 0; index < outline.buffers().size(); ++index) {
    const graph::Buffer& buffer = outline.buffers()[index];
    if (!buffer.part && buffer.kind != graph::BufferKind::activation)
      bindings.bind(static_cast<graph::BufferId>(index), take(buffer.bytes()));
  }
  bindings.bind_arena(plan, take(plan.arena_bytes));
  bindings.bind_parts(outline);
  return bindings;
}

/// The labels of each segment's kernels, none of which runs. `launches`: what those of segments that compute do, beside
/// what ranks tell each other.
template <class Space>
std::vector<std::vector<std::string>> kernels_of(backend::Device<Space>& device,
                                                 const graph::Program<Space>& program,
                                                 const graph::MemoryPlan& plan,
                                                 std::vector<backend::LaunchRecord>* launches = nullptr) {
  const graph::Bindings bindings = imaginary_bindings<Space>(program.outline(), plan);
  std::vector<std::vector<std::string>> kernels(program.outline().segments().size());
  backend::Stream<Space>& stream = device.stream();
  const backend::ModeScope<Space> list(stream, backend::StreamMode::list);
  for (std::size_t index = 0; index < kernels.size(); ++index) {
    stream.collect_labels(&kernels[index]);
    stream.collect_launches(program.outline().segments()[index].module == graph::Module::comm ? nullptr
                                                                                              : launches);
    program.run_segment(index, device, bindings);
  }
  stream.collect_labels(nullptr);
  stream.collect_launches(nullptr);
  return kernels;
}

}  // namespace encore::model
