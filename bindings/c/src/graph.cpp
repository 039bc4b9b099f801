// SPDX-License-Identifier: Apache-2.0
#include <encore/c/graph.h>
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <algorithm>
#include <span>

#include "stream.hpp"

namespace encore::c {

namespace {

#define ENCORE_GRAPH_ALTERNATIVE(SPACE) , std::unique_ptr<backend::RecordedGraph<SPACE>>
using AnyGraph = std::variant<std::monostate ENCORE_FOR_EACH_SPACE(ENCORE_GRAPH_ALTERNATIVE)>;
#undef ENCORE_GRAPH_ALTERNATIVE

/// Counts that a caller's function is running, or may be.
class CallbackScope {
 public:
  explicit CallbackScope(std::atomic<int>& callbacks) : callbacks_(callbacks) { ++callbacks_; }
  ~CallbackScope() { --callbacks_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

 private:
  std::atomic<int>& callbacks_;
};

/// Calls a caller's function, and throws what made it give up.
void call(encore_stream* stream, const std::string& graph, encore_record_function function, void* user) {
  const CallbackScope scope(stream->state->callbacks);
  const int status = function(stream, user);
  if (status == ENCORE_OK) return;
  if (status == encore_last_error_status()) rethrow_last_error();
  throw CaptureError("recording '" + graph + "': its function gave up with " + std::to_string(status));
}

/// Calls `use` with the accesses as the gateway takes them: none where they are more than it can be given here.
template <class Use>
void with_accesses(std::span<const backend::Access> a, const Use& use) {
  switch (a.size()) {
    case 1: return use(backend::Accesses{a[0]});
    case 2: return use(backend::Accesses{a[0], a[1]});
    case 3: return use(backend::Accesses{a[0], a[1], a[2]});
    case 4: return use(backend::Accesses{a[0], a[1], a[2], a[3]});
    case 5: return use(backend::Accesses{a[0], a[1], a[2], a[3], a[4]});
    case 6: return use(backend::Accesses{a[0], a[1], a[2], a[3], a[4], a[5]});
    case 7: return use(backend::Accesses{a[0], a[1], a[2], a[3], a[4], a[5], a[6]});
    case 8: return use(backend::Accesses{a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]});
    default: return use(backend::Accesses{});
  }
}

std::vector<backend::Access> accesses_of(const encore_access* accesses, std::size_t count) {
  std::vector<backend::Access> result;
  for (const encore_access& access : std::span(accesses, count)) {
    if (access.bytes == 0) continue;
    require_pointer(access.memory, "accesses");
    result.push_back(backend::read(static_cast<const std::byte*>(access.memory), access.bytes));
    result.back().writes = access.writes != 0;
  }
  return result;
}

/// What hosts store of a caller's node, and what runs at once elsewhere.
struct Node {
  const char* label;
  encore_node_function function;
  void* native;
  void* user;

  void operator()() const {
    const int status = function(native, user);
    if (status != 0)
      throw DeviceError("node '" + std::string(label) + "' failed with " + std::to_string(status));
  }
};

/// Copies of arrays on the host.
class Contents {
 public:
  template <class Space>
  Contents(backend::Stream<Space>& stream, std::span<const encore_array> arrays) {
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const encore_array& array = arrays[i];
      bytes_.emplace_back(array.bytes);
      if (array.bytes == 0) continue;
      require_pointer(array.memory, "arrays[" + std::to_string(i) + "].memory");
      stream.copy_to_host(bytes_.back().data(), array.memory, array.bytes, "encore_graph_validate");
    }
    stream.synchronize("encore_graph_validate");
  }

  template <class Space>
  void restore(backend::Stream<Space>& stream, std::span<const encore_array> arrays) const {
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (arrays[i].bytes == 0) continue;
      stream.copy_to_device(arrays[i].memory, bytes_[i].data(), arrays[i].bytes, "encore_graph_validate");
    }
    stream.synchronize("encore_graph_validate");
  }

  /// Throws ValidationError where `replayed` has other bits.
  void require_same(const Contents& replayed, std::span<const encore_array> arrays,
                    const std::string& graph) const {
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const auto [eager, other] = std::ranges::mismatch(bytes_[i], replayed.bytes_[i]);
      if (eager == bytes_[i].end()) continue;
      throw ValidationError("the replay of '" + graph + "' differs from the eager run in '" +
                            (arrays[i].name == nullptr ? "array " + std::to_string(i) : arrays[i].name) +
                            "' from byte " + std::to_string(eager - bytes_[i].begin()) + " of " +
                            std::to_string(arrays[i].bytes));
    }
  }

 private:
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace

class GraphState : public Object {
 public:
  GraphState(encore_stream* stream, const std::string& name, encore_record_function function, void* user)
      : Object(stream->state->runtime(), "graph '" + name + "'"), stream_(stream->state), graph_name_(name) {
    stream_->require_no_recording("encore_graph_record");
    stream_->with_device([&]<class Space>(backend::Device<Space>& device) {
      graph_ = std::make_unique<backend::RecordedGraph<Space>>(device.stream(), name, [&] {
        stream_->keep_allocations();
        call(stream, name, function, user);
      });
    });
  }
  ~GraphState() override {
    const std::lock_guard lock(stream_->mutex());
    end();
  }

  /// Calls `use(backend::RecordedGraph<Space>&)`.
  template <class Use>
  decltype(auto) with_graph(const Use& use) {
    const std::lock_guard lock(stream_->mutex());
    return std::visit(
        [&](auto& alternative) -> decltype(use(*std::get<1>(graph_))) {
          if constexpr (std::is_same_v<std::decay_t<decltype(alternative)>, std::monostate>) {
            throw UsageError(name() + " has ended together with Kokkos: it can only be destroyed");
          } else {
            return use(*alternative);
          }
        },
        graph_);
  }

  void replay() {
    const CallbackScope scope(callbacks);
    stream_->require_no_recording("encore_graph_replay");
    with_graph([](auto& graph) { graph.replay(); });
  }

  void validate(encore_record_function function, void* user, std::span<const encore_array> arrays) {
    const CallbackScope scope(callbacks);
    stream_->require_no_recording("encore_graph_validate");
    stream_->with_device([&](auto& device) {
      const Contents before(device.stream(), arrays);
      encore_stream handle{stream_};
      try {
        call(&handle, graph_name_, function, user);
      } catch (...) {
        before.restore(device.stream(), arrays);
        throw;
      }
      const Contents eager(device.stream(), arrays);
      before.restore(device.stream(), arrays);
      replay();
      const Contents replayed(device.stream(), arrays);
      eager.require_same(replayed, arrays, graph_name_);
    });
  }

  /// Greater than 0 while it is replayed or validated, which calls functions of the caller.
  std::atomic<int> callbacks = 0;

 protected:
  void end() noexcept override { graph_ = std::monostate(); }

 private:
  std::shared_ptr<StreamState> stream_;
  std::string graph_name_;
  AnyGraph graph_;
};

}  // namespace encore::c

struct encore_graph {
  std::unique_ptr<encore::c::GraphState> state;
};

using encore::c::guarded;
using encore::c::require_pointer;
using encore::c::state_of;

extern "C" {

int encore_graph_record(encore_stream* stream, const char* name, encore_record_function function, void* user,
                        encore_graph** graph) {
  return guarded([&] {
    require_pointer(stream, "stream");
    require_pointer(name, "name");
    require_pointer(reinterpret_cast<const void*>(function), "function");
    require_pointer(graph, "graph");
    *graph = new encore_graph{std::make_unique<encore::c::GraphState>(stream, name, function, user)};
  });
}

int encore_graph_destroy(encore_graph* graph) {
  return guarded([&] {
    if (graph == nullptr) return;
    encore::require<encore::UsageError>(graph->state->callbacks == 0,
                                        "encore_graph_destroy while the graph is replayed or validated: "
                                        "move it behind that");
    delete graph;
  });
}

int encore_graph_replay(encore_graph* graph) {
  return guarded([&] {
    require_pointer(graph, "graph");
    graph->state->replay();
  });
}

int encore_graph_nodes(const encore_graph* graph, size_t* nodes) {
  return guarded([&] {
    require_pointer(graph, "graph");
    require_pointer(nodes, "nodes");
    *nodes = graph->state->with_graph([](auto& recorded) { return recorded.nodes(); });
  });
}

int encore_graph_labels(const encore_graph* graph, char* text, size_t size, size_t* length) {
  return guarded([&] {
    require_pointer(graph, "graph");
    std::string lines;
    graph->state->with_graph([&](auto& recorded) {
      for (const std::string& label : recorded.labels()) lines += label + '\n';
    });
    encore::c::write_text(lines, text, size, length);
  });
}

int encore_graph_validate(encore_graph* graph, encore_record_function function, void* user,
                          const encore_array* arrays, size_t count) {
  return guarded([&] {
    require_pointer(graph, "graph");
    require_pointer(reinterpret_cast<const void*>(function), "function");
    if (count > 0) require_pointer(arrays, "arrays");
    graph->state->validate(function, user, std::span(arrays, count));
  });
}

int encore_launch(encore_stream* stream, const char* label, encore_node_function function, void* user,
                  const encore_access* accesses, size_t count) {
  return guarded([&] {
    require_pointer(label, "label");
    require_pointer(reinterpret_cast<const void*>(function), "function");
    if (count > 0) require_pointer(accesses, "accesses");
    encore::c::StreamState& state = state_of(stream);
    void* native = nullptr;
    if (const int status = encore_stream_native(stream, &native); status != ENCORE_OK)
      encore::c::rethrow_last_error();
    const auto ranges = encore::c::accesses_of(accesses, count);
    const encore::c::CallbackScope scope(state.callbacks);
    state.with_device([&](auto& device) {
      const encore::c::Node node{state.label(label), function, native, user};
      encore::c::with_accesses(ranges, [&](encore::backend::Accesses list) {
        encore::backend::launch_native(device.stream(), node.label, list, node);
      });
    });
  });
}

}  // extern "C"
