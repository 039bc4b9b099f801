// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/outline.hpp>

#include <array>
#include <functional>
#include <numeric>

namespace encore::graph {

namespace {

/// FNV-1a.
class Hash {
 public:
  static constexpr std::uint64_t basis = 14695981039346656037ULL;

  explicit Hash(std::uint64_t start) : value_(start) {}

  Hash& number(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<unsigned char>(number >> shift));
    return *this;
  }
  Hash& text(const std::string& text) {
    for (const char character : text) byte(static_cast<unsigned char>(character));
    byte(0);
    return *this;
  }
  std::uint64_t value() const { return value_; }

 private:
  void byte(unsigned char byte) { value_ = (value_ ^ byte) * 1099511628211ULL; }

  std::uint64_t value_;
};

std::uint64_t sign(std::uint64_t start, const Buffer& buffer) {
  Hash hash(start);
  hash.text(buffer.name).number(static_cast<std::uint64_t>(buffer.type));
  hash.number(static_cast<std::uint64_t>(buffer.kind)).number(buffer.shape.size());
  for (const std::int64_t extent : buffer.shape) hash.number(static_cast<std::uint64_t>(extent));
  hash.number(buffer.part ? 1 : 0).number(buffer.partly_written ? 1 : 0);
  if (buffer.part)
    hash.number(static_cast<std::uint64_t>(buffer.part->whole)).number(buffer.part->offset_bytes);
  return hash.value();
}

std::uint64_t sign(std::uint64_t start, const Segment& segment) {
  Hash hash(start);
  hash.text(segment.name).number(static_cast<std::uint64_t>(segment.module));
  hash.number(static_cast<std::uint64_t>(segment.phase)).text(segment.eager_because);
  hash.number(static_cast<std::uint64_t>(segment.layer))
      .number(static_cast<std::uint64_t>(segment.microbatch));
  for (const auto* list : {&segment.reads, &segment.writes}) {
    hash.number(list->size());
    for (const BufferId id : *list) hash.number(static_cast<std::uint64_t>(id));
  }
  return hash.value();
}

}  // namespace

std::string_view name_of(BufferKind kind) {
  constexpr std::array<std::string_view, buffer_kinds> names{
      "parameter", "gradient", "optimizer_state", "input", "scalar", "metric", "state", "activation"};
  return names[static_cast<std::size_t>(kind)];
}

std::string_view name_of(Module module) {
  constexpr std::array<std::string_view, 12> names{
      "embedding",   "attn",  "mlp",  "moe_router", "moe_preprocess", "moe_experts",
      "moe_combine", "mamba", "head", "optimizer",  "comm",           "random"};
  return names[static_cast<std::size_t>(module)];
}

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, 4> names{"forward", "backward", "weight_gradient", "update"};
  return names[static_cast<std::size_t>(phase)];
}

std::int64_t Buffer::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::size_t Buffer::bytes() const { return static_cast<std::size_t>(elements()) * backend::size_of(type); }

Outline::Outline() : buffers_signature_(Hash::basis), segments_signature_(Hash::basis) {}

BufferId Outline::add_buffer(Buffer buffer) {
  for (const std::int64_t extent : buffer.shape)
    if (extent < 0) throw InternalError("buffer '" + buffer.name + "' has a negative dimension");
  if (buffer.part) {
    const std::size_t whole = static_cast<std::size_t>(buffer.part->whole);
    if (whole >= buffers_.size() || buffers_[whole].part || buffers_[whole].kind == BufferKind::activation ||
        buffer.part->offset_bytes + buffer.bytes() > buffers_[whole].bytes())
      throw InternalError("buffer '" + buffer.name + "' does not lie inside the buffer it is a part of");
  }
  const auto id = static_cast<BufferId>(buffers_.size());
  if (!buffer_names_.emplace(buffer.name, id).second)
    throw InternalError("two buffers are called '" + buffer.name + "'");
  buffers_signature_ = sign(buffers_signature_, buffer);
  buffers_.push_back(std::move(buffer));
  return id;
}

std::size_t Outline::add_segment(Segment segment) {
  for (const auto* list : {&segment.reads, &segment.writes})
    for (const BufferId id : *list)
      if (static_cast<std::size_t>(id) >= buffers_.size())
        throw InternalError("segment '" + segment.name + "' names a buffer that its program does not have");
  const std::size_t index = segments_.size();
  if (!segment_names_.emplace(segment.name, index).second)
    throw InternalError("two segments are called '" + segment.name + "'");
  segments_signature_ = sign(segments_signature_, segment);
  segments_.push_back(std::move(segment));
  return index;
}

std::vector<Segment> Outline::take_segments() {
  segment_names_.clear();
  segments_signature_ = Hash::basis;
  return std::exchange(segments_, {});
}

std::optional<BufferId> Outline::find_buffer(std::string_view name) const {
  const auto found = buffer_names_.find(std::string(name));
  if (found == buffer_names_.end()) return std::nullopt;
  return found->second;
}

std::uint64_t Outline::signature() const {
  return Hash(buffers_signature_).number(segments_signature_).value();
}

}  // namespace encore::graph
