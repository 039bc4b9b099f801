// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/snapshot.hpp>

#include <algorithm>
#include <cstring>

namespace encore::graph {

namespace {

bool is_taken_over(BufferKind kind) {
  using enum BufferKind;
  return kind == parameter || kind == gradient || kind == optimizer_state || kind == state || kind == metric;
}

/// A clause, or nothing when every bit is the same.
std::string difference(const Buffer& buffer, std::span<const std::byte> left,
                       std::span<const std::byte> right) {
  if (left.size() != right.size()) return "'" + buffer.name + "' was kept in one of them only";
  if (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0) return {};
  const std::size_t size = backend::size_of(buffer.type);
  std::size_t differing = 0, first = 0;
  for (std::size_t at = 0; at < left.size(); at += size) {
    if (std::memcmp(left.data() + at, right.data() + at, size) == 0) continue;
    if (differing++ == 0) first = at / size;
  }
  return std::to_string(differing) + " of " + std::to_string(buffer.elements()) + " elements of '" +
         buffer.name + "' differ, the first at " + std::to_string(first);
}

}  // namespace

template <class Space>
Snapshot Snapshot::take(backend::Device<Space>& device, const Outline& outline, const MemoryPlan& plan,
                        const Bindings& bindings) {
  Snapshot snapshot;
  snapshot.buffers_.resize(outline.buffers().size());
  const auto copy = [&](BufferId id) {
    auto& bytes = snapshot.buffers_[static_cast<std::size_t>(id)];
    if (bindings.address(id) == nullptr) return;
    bytes.resize(outline.buffer(id).bytes());
    device.stream().copy_to_host(bytes.data(), bindings.address(id), bytes.size(), "snapshot");
  };
  for (std::size_t i = 0; i < outline.buffers().size(); ++i)
    if (!outline.buffers()[i].part && outline.buffers()[i].kind != BufferKind::activation)
      copy(static_cast<BufferId>(i));
  for (const BufferId id : activations_left(outline, plan)) copy(id);
  device.stream().synchronize("snapshot");
  snapshot.random_ = device.random().snapshot(device.stream());
  return snapshot;
}

template <class Space>
void Snapshot::restore(backend::Device<Space>& device, const Outline& outline,
                       const Bindings& bindings) const {
  for (std::size_t i = 0; i < outline.buffers().size(); ++i) {
    const Buffer& buffer = outline.buffers()[i];
    if (buffer.part || !is_taken_over(buffer.kind) || buffers_[i].empty()) continue;
    device.stream().copy_to_device(bindings.address(static_cast<BufferId>(i)), buffers_[i].data(),
                                   buffers_[i].size(), "snapshot: restore");
  }
  device.random().restore(device.stream(), random_);
}

std::span<const std::byte> Snapshot::bytes(const Outline& outline, BufferId id) const {
  const Buffer& buffer = outline.buffer(id);
  const auto& whole = buffers_[static_cast<std::size_t>(buffer.part ? buffer.part->whole : id)];
  if (whole.empty()) return {};
  return std::span(whole).subspan(buffer.part ? buffer.part->offset_bytes : 0, buffer.bytes());
}

std::string first_difference(const Outline& outline, const Snapshot& left, const Snapshot& right,
                             const std::vector<BufferId>& ignored) {
  const auto& buffers = outline.buffers();
  std::vector<bool> has_parts(buffers.size(), false);
  for (const Buffer& buffer : buffers)
    if (buffer.part) has_parts[static_cast<std::size_t>(buffer.part->whole)] = true;
  // A parameter is named, and not the array of all of them; the array stands in for what lies between its parts.
  for (const bool wholes : {false, true})
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const auto id = static_cast<BufferId>(i);
      if (buffers[i].partly_written) continue;
      if (has_parts[i] != wholes || std::ranges::find(ignored, id) != ignored.end()) continue;
      std::string found = difference(buffers[i], left.bytes(outline, id), right.bytes(outline, id));
      if (!found.empty()) return found;
    }
  for (std::size_t i = 0; i < left.random().size(); ++i)
    if (left.random()[i].seed != right.random()[i].seed ||
        left.random()[i].offset != right.random()[i].offset)
      return "random stream " + std::to_string(i) + " stands elsewhere";
  return {};
}

#define ENCORE_INSTANTIATE(SPACE)                                                              \
  template Snapshot Snapshot::take(backend::Device<SPACE>&, const Outline&, const MemoryPlan&, \
                                   const Bindings&);                                           \
  template void Snapshot::restore(backend::Device<SPACE>&, const Outline&, const Bindings&) const;
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::graph
