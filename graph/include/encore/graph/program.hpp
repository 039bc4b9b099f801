// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/device.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/region.hpp>
#include <encore/graph/memory_plan.hpp>
#include <encore/graph/outline.hpp>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace encore::graph {

/// Throws ReplayContractError that names the buffer and every way in which what is bound to it does not fit.
void require_match(const Buffer& buffer, backend::DataType type, const std::vector<std::int64_t>& extents,
                   bool contiguous);

/// The address of every buffer of a program. Owns nothing.
class Bindings {
 public:
  explicit Bindings(const Outline& outline) : addresses_(outline.buffers().size(), nullptr) {}

  void bind(BufferId id, std::byte* address) { addresses_.at(static_cast<std::size_t>(id)) = address; }
  /// Binds the activations to their places in an arena of the plan's size.
  void bind_arena(const MemoryPlan& plan, std::byte* arena) {
    for (const PlannedActivation& activation : plan.activations)
      bind(activation.buffer, arena + activation.offset);
  }
  /// Binds every part relative to its whole, which must be bound.
  void bind_parts(const Outline& outline) {
    for (std::size_t index = 0; index < addresses_.size(); ++index)
      if (const auto& part = outline.buffers()[index].part)
        addresses_[index] = address(part->whole) + part->offset_bytes;
  }
  /// Binds a contiguous view. Throws ReplayContractError unless its type and extents are the buffer's own: one that
  /// could be converted or broadcast would be read as something else.
  template <class View>
  void bind_view(const Outline& outline, BufferId id, const View& view) {
    const Buffer& buffer = outline.buffer(id);
    std::vector<std::int64_t> extents;
    for (std::size_t i = 0; i < View::rank(); ++i)
      extents.push_back(static_cast<std::int64_t>(view.extent(i)));
    require_match(buffer, backend::data_type_of<typename View::value_type>, extents,
                  view.span_is_contiguous());
    bind(id, reinterpret_cast<std::byte*>(view.data()));
  }
  std::byte* address(BufferId id) const { return addresses_[static_cast<std::size_t>(id)]; }
  std::vector<const std::byte*> addresses() const { return {addresses_.begin(), addresses_.end()}; }
  bool are(const std::vector<const std::byte*>& addresses) const {
    return std::equal(addresses_.begin(), addresses_.end(), addresses.begin(), addresses.end());
  }
  friend bool operator==(const Bindings&, const Bindings&) = default;

 private:
  std::vector<std::byte*> addresses_;
};

/// What a segment's body gets: the device, and its buffers as typed views. A body that touches a buffer it
/// did not declare, or takes it as another type, throws InternalError naming segment and buffer.
template <class Space>
class Execution {
 public:
  Execution(backend::Device<Space>& device, const Outline& outline, const Bindings& bindings,
            const Segment& segment)
      : device_(&device), outline_(&outline), bindings_(&bindings), segment_(&segment) {}

  backend::Device<Space>& device() const { return *device_; }
  backend::Stream<Space>& stream() const { return device_->stream(); }
  const Segment& segment() const { return *segment_; }
  const Outline& outline() const { return *outline_; }

  /// `T const` for reading, `T` for writing.
  template <class T>
  T* pointer(BufferId id) const {
    check(id, backend::data_type_of<T>, !std::is_const_v<T>);
    return reinterpret_cast<T*>(bindings_->address(id));
  }

  /// For reading, whatever the type.
  const std::byte* bytes(BufferId id) const {
    check(id, outline_->buffer(id).type, false);
    return bindings_->address(id);
  }

  /// All elements in one row.
  template <class T>
  backend::Vector<T, Space> vector(BufferId id) const {
    return backend::Vector<T, Space>(pointer<T>(id),
                                     static_cast<std::size_t>(outline_->buffer(id).elements()));
  }

  /// [product of all dimensions but the last, last dimension].
  template <class T>
  backend::Matrix<T, Space> matrix(BufferId id) const {
    const Buffer& buffer = outline_->buffer(id);
    const std::int64_t columns = buffer.shape.empty() ? 1 : buffer.shape.back();
    const std::int64_t rows = columns == 0 ? 0 : buffer.elements() / columns;
    return backend::Matrix<T, Space>(pointer<T>(id), static_cast<std::size_t>(rows),
                                     static_cast<std::size_t>(columns));
  }

 private:
  void check(BufferId id, backend::DataType type, bool writes) const {
    const auto listed = [&](const std::vector<BufferId>& list) {
      return std::find(list.begin(), list.end(), id) != list.end();
    };
    const Buffer& buffer = outline_->buffer(id);
    if (!listed(segment_->writes) && (writes || !listed(segment_->reads)))
      throw InternalError("segment '" + segment_->name + "' " + (writes ? "writes" : "reads") + " buffer '" +
                          buffer.name + "' without having declared it");
    if (buffer.type != type)
      throw InternalError("segment '" + segment_->name + "' takes buffer '" + buffer.name + "' of type " +
                          std::string(backend::name_of(buffer.type)) + " as " +
                          std::string(backend::name_of(type)));
    if (bindings_->address(id) == nullptr && buffer.elements() > 0)
      throw InternalError("buffer '" + buffer.name + "' has no memory in segment '" + segment_->name + "'");
  }

  backend::Device<Space>* device_;
  const Outline* outline_;
  const Bindings* bindings_;
  const Segment* segment_;
};

/// An outline with the code of its segments. Bodies only launch kernels: they may run any number of times,
/// eagerly or while recording, and must do the same each time.
template <class Space>
class Program {
 public:
  using Body = std::function<void(Execution<Space>&)>;

  Outline& outline() { return outline_; }
  const Outline& outline() const { return outline_; }

  BufferId add_buffer(Buffer buffer) { return outline_.add_buffer(std::move(buffer)); }
  void add_segment(Segment segment, Body body) {
    outline_.add_segment(std::move(segment));
    bodies_.push_back(std::move(body));
  }

  /// Segments to come behind the one that has an index.
  struct Insertion {
    std::size_t after;
    Segment segment;
    Body body;
  };
  /// Those with the same index keep their order.
  void insert_segments(std::vector<Insertion> insertions) {
    std::stable_sort(
        insertions.begin(), insertions.end(),
        [](const Insertion& first, const Insertion& second) { return first.after < second.after; });
    std::vector<Segment> segments = outline_.take_segments();
    std::vector<Body> bodies = std::exchange(bodies_, {});
    auto insertion = insertions.begin();
    for (std::size_t index = 0; index < segments.size(); ++index) {
      add_segment(std::move(segments[index]), std::move(bodies[index]));
      for (; insertion != insertions.end() && insertion->after == index; ++insertion)
        add_segment(std::move(insertion->segment), std::move(insertion->body));
    }
    if (insertion != insertions.end())
      throw InternalError("segment '" + insertion->segment.name +
                          "' is to come behind one that does not exist");
  }

  const Body& body(std::size_t index) const { return bodies_[index]; }

  void run_segment(std::size_t index, backend::Device<Space>& device, const Bindings& bindings) const {
    const Segment& segment = outline_.segments()[index];
    const backend::Region region(device.stream(), backend::RegionKind::segment, segment.name);
    Execution<Space> execution(device, outline_, bindings, segment);
    bodies_[index](execution);
  }

 private:
  Outline outline_;
  std::vector<Body> bodies_;
};

}  // namespace encore::graph
