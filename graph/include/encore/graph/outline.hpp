// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace encore::graph {

enum class BufferId : std::uint32_t {};

/// What a buffer is for. Only activations live in the arena, whose memory is reused inside a step.
enum class BufferKind { parameter, gradient, optimizer_state, input, scalar, metric, state, activation };
inline constexpr int buffer_kinds = 8;
std::string_view name_of(BufferKind kind);

/// Where a buffer lies that is a part of another one, as a parameter is of the array of all parameters.
struct BufferPart {
  BufferId whole;
  std::size_t offset_bytes;
};

struct Buffer {
  std::string name;  ///< such as `layer.3/attn/qkv`; unique in its program
  backend::DataType type;
  std::vector<std::int64_t> shape;
  BufferKind kind = BufferKind::activation;
  std::optional<BufferPart> part = std::nullopt;
  /// Some of its rows may hold nothing, and only the device knows which: its content is not compared.
  bool partly_written = false;

  std::int64_t elements() const;
  std::size_t bytes() const;
};

enum class Module {
  embedding,
  attn,
  mlp,
  moe_router,
  moe_preprocess,
  moe_experts,
  moe_combine,
  mamba,
  head,
  optimizer,
  comm,
  random
};
std::string_view name_of(Module module);

/// weight_gradient: the part of a backward pass that nothing but the optimizer waits for, where it is delayed.
enum class Phase { forward, backward, weight_gradient, update };
std::string_view name_of(Phase phase);

/// One named piece of a step: the unit that policies select, and that errors, dumps and profiles name.
struct Segment {
  std::string
      name;  ///< such as `layer.3/attn/forward`, with `microbatch.1/` before it where there are several
  Module module;
  Phase phase;
  std::int32_t layer = -1;       ///< -1: belongs to no layer
  std::int32_t microbatch = -1;  ///< -1: belongs to the whole step
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;
  /// Why no recording may hold it, such as "waits for the host"; empty: it may be captured.
  std::string eager_because = {};
  /// Of its buffers those that launches beside the main branch use, which may still run in the next segment: the memory
  /// plan keeps them for it, so that it need not wait.
  std::vector<BufferId> lingers = {};
};

/// A program without its code: buffers, and segments in the order in which they run. Plans, policies and
/// dumps need no more than this, so they touch no device.
class Outline {
 public:
  Outline();

  /// Throws InternalError when the name is taken, a dimension is negative, or a part sticks out of its whole
  /// (which may not be a part itself, nor an activation).
  BufferId add_buffer(Buffer buffer);
  /// Throws InternalError when the name is taken or a buffer is unknown.
  std::size_t add_segment(Segment segment);

  /// Takes all segments out, to be added anew.
  std::vector<Segment> take_segments();

  const Buffer& buffer(BufferId id) const { return buffers_[static_cast<std::size_t>(id)]; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  const std::vector<Segment>& segments() const { return segments_; }
  std::optional<BufferId> find_buffer(std::string_view name) const;

  /// Differs between outlines of which one has other buffers or segments, or in another order, or with other
  /// names, types or shapes. Costs nothing: a replay asks for it each time.
  std::uint64_t signature() const;

 private:
  std::vector<Buffer> buffers_;
  std::vector<Segment> segments_;
  std::unordered_map<std::string, BufferId> buffer_names_;
  std::unordered_map<std::string, std::size_t> segment_names_;
  std::uint64_t buffers_signature_;
  std::uint64_t segments_signature_;
};

}  // namespace encore::graph
