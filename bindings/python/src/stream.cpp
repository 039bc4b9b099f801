// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>

#include "arguments.hpp"

namespace encore::python {

Stream::Stream(std::shared_ptr<Runtime> runtime, encore_backend backend, void* native)
    : runtime_(std::move(runtime)), backend_(backend) {
  encore_runtime* const on = runtime_->get();
  call([&] { return encore_stream_create(on, backend, native, &stream_); });
}

Stream::~Stream() {
  const nb::gil_scoped_release released;
  encore_stream_destroy(stream_);
}

encore_stream* Stream::get() const {
  if (stream_ == nullptr) throw CallError(ENCORE_ERROR_USAGE, "the stream is closed: make another one");
  return stream_;
}

void Stream::close() {
  if (stream_ == nullptr) return;
  views_.require_none("stream");
  call([&] { return encore_stream_destroy(stream_); });
  stream_ = nullptr;
}

namespace {

/// A function of Python that launches kernels, as the C API calls it.
struct Launches {
  nb::object function;
  nb::object stream;
  std::shared_ptr<std::exception_ptr> failure;

  static int run(encore_stream*, void* user) {
    const nb::gil_scoped_acquire acquired;
    const auto* self = static_cast<const Launches*>(user);
    try {
      self->function(self->stream);
      return 0;
    } catch (...) {
      *self->failure = std::current_exception();
      return -1;
    }
  }
};

int run_node(void* native, void* user) {
  const nb::gil_scoped_acquire acquired;
  const auto* node = static_cast<const PythonNode*>(user);
  try {
    if (native == nullptr) {
      node->function();
    } else {
      node->function(reinterpret_cast<std::uintptr_t>(native));
    }
    return 0;
  } catch (...) {
    *node->failure = std::current_exception();
    return -1;
  }
}

class Graph final : public Closable {
 public:
  Graph(nb::object stream, const std::string& name, nb::object function)
      : stream_(nb::cast<std::shared_ptr<Stream>>(stream)) {
    Launches launches{std::move(function), stream, stream_->failure};
    const RecordingScope scope(*stream_, recording_);
    stream_->call_back([&] {
      return encore_graph_record(stream_->get(), name.c_str(), &Launches::run, &launches, &graph_);
    });
  }
  ~Graph() override {
    const nb::gil_scoped_release released;
    encore_graph_destroy(graph_);
  }

  encore_graph* get() const {
    if (graph_ == nullptr) throw CallError(ENCORE_ERROR_USAGE, "the graph is closed: record another one");
    return graph_;
  }

  void close() override {
    call([&] { return encore_graph_destroy(graph_); });
    graph_ = nullptr;
    recording_ = {};
  }

  void replay() {
    stream_->call_back([&] { return encore_graph_replay(get()); });
  }

  void validate(nb::object stream, nb::object function, const std::vector<Output>& arrays) {
    std::vector<encore_array> list;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < arrays.size(); ++i) names.push_back("array " + std::to_string(i));
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const Argument argument(*stream_, arrays[i], names[i].c_str());
      list.push_back({names[i].c_str(), argument.data(), argument.bytes()});
    }
    Launches launches{std::move(function), std::move(stream), stream_->failure};
    stream_->call_back(
        [&] { return encore_graph_validate(get(), &Launches::run, &launches, list.data(), list.size()); });
  }

  const std::shared_ptr<Stream>& stream() const { return stream_; }

 private:
  struct RecordingScope {
    RecordingScope(Stream& the_stream, Recording& recording) : stream(the_stream), before(stream.recording) {
      stream.recording = &recording;
    }
    ~RecordingScope() { stream.recording = before; }
    Stream& stream;
    Recording* before;
  };

  std::shared_ptr<Stream> stream_;
  Recording recording_;
  encore_graph* graph_ = nullptr;
};

/// Runs a function of Python as a node, or records it.
void launch(Stream& stream, const std::string& label, nb::object function, const std::vector<Input>& reads,
            const std::vector<Output>& writes) {
  std::vector<encore_access> accesses;
  for (const Input& array : reads) {
    const Argument argument(stream, array, "reads");
    stream.keep(array);
    accesses.push_back({argument.data(), argument.bytes(), 0});
  }
  for (const Output& array : writes) {
    const Argument argument(stream, array, "writes");
    stream.keep(array);
    accesses.push_back({argument.data(), argument.bytes(), 1});
  }
  auto node = std::make_unique<PythonNode>(PythonNode{std::move(function), stream.failure});
  stream.call_back([&] {
    return encore_launch(stream.get(), label.c_str(), run_node, node.get(), accesses.data(), accesses.size());
  });
  if (stream.recording != nullptr) stream.recording->nodes.push_back(std::move(node));
}

nb::object empty(const std::shared_ptr<Stream>& stream, const std::vector<std::size_t>& shape,
                 const std::string& dtype) {
  const encore_type type = type_of(dtype);
  const std::size_t bytes = static_cast<std::size_t>(elements_of(shape, type)) * size_of(type);
  // Ends with the array, or with the stream where that is recording.
  struct Memory {
    std::shared_ptr<Stream> stream;
    void* address = nullptr;
    ~Memory() {
      if (address == nullptr) return;
      const nb::gil_scoped_release released;
      encore_free(stream->get(), address);
    }
  };
  auto memory = std::make_shared<Memory>(Memory{stream, nullptr});
  void*& address = memory->address;
  const nb::object owner = stream->views().owner(std::move(memory));  // from here on the stream is not closed
  call([&] { return encore_allocate(stream->get(), bytes, "array of Python", &address); });
  int device = -1;
  call([&] { return encore_runtime_device(stream->runtime()->get(), &device); });
  return make_array(address, type, shape, stream->backend() == ENCORE_CUDA, device, owner);
}

nb::object zeros(const std::shared_ptr<Stream>& stream, const std::vector<std::size_t>& shape,
                 const std::string& dtype) {
  const nb::object array = empty(stream, shape, dtype);
  const Argument argument(*stream, nb::cast<Output>(array), "array");
  call([&] { return encore_clear(stream->get(), argument.data(), argument.bytes()); });
  return array;
}

using HostInput = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

/// A copy of a host's array in the device's memory.
nb::object to_device(const std::shared_ptr<Stream>& stream, const HostInput& host) {
  std::vector<std::size_t> shape;
  for (std::size_t i = 0; i < host.ndim(); ++i) shape.push_back(host.shape(i));
  const nb::object array = empty(stream, shape, name_of(type_of(host.dtype(), "values")));
  const Argument argument(*stream, nb::cast<Output>(array), "array");
  call([&] { return encore_copy_to_device(stream->get(), argument.data(), host.data(), argument.bytes()); });
  return array;
}

/// A copy on the host, of which bfloat16 becomes float32.
nb::object to_host(const Stream& stream, const Input& array) {
  const Argument argument(stream, array, "array");
  auto* kept = new std::vector<std::byte>(argument.bytes());
  const nb::capsule owner(kept,
                          [](void* memory) noexcept { delete static_cast<std::vector<std::byte>*>(memory); });
  call([&] { return encore_copy_to_host(stream.get(), kept->data(), argument.data(), kept->size()); });
  encore_type type = argument.type();
  if (type == ENCORE_BFLOAT16) {
    std::vector<std::byte> wide(2 * kept->size());
    for (std::size_t i = 0; i < kept->size() / 2; ++i) std::memcpy(&wide[4 * i + 2], &(*kept)[2 * i], 2);
    *kept = std::move(wide);  // the upper half of a float32
    type = ENCORE_FLOAT32;
  }
  return make_array(kept->data(), type, argument.shape(), false, 0, owner);
}

void bind_graph(nb::module_& module) {
  nb::class_<Graph>(module, "Graph", nb::is_weak_referenceable(),
                    "Kernels recorded once and replayed. Keeps the arrays that they touch.")
      .def("replay", &Graph::replay, "Queues all of them once; the GIL is free meanwhile.")
      .def(
          "validate",
          [](Graph& self, nb::object function, const std::vector<Output>& arrays) {
            self.validate(nb::cast(self.stream()), std::move(function), arrays);
          },
          nb::arg("function"), nb::arg("arrays"),
          "Runs function(stream) eagerly and then by replay from the same contents of the arrays, all that "
          "it writes, "
          "and compares every bit: ValidationError names the first that differs.")
      .def("close", &Graph::close)
      .def_prop_ro("nodes",
                   [](const Graph& self) {
                     std::size_t nodes = 0;
                     call([&] { return encore_graph_nodes(self.get(), &nodes); });
                     return nodes;
                   })
      .def_prop_ro("labels", [](const Graph& self) {
        const std::string lines = text_of([&](char* text, std::size_t size, std::size_t* length) {
          return encore_graph_labels(self.get(), text, size, length);
        });
        return nb::cast<std::vector<std::string>>(nb::str(lines.c_str()).attr("splitlines")());
      });
}

}  // namespace

void bind_stream(nb::module_& module) {
  bind_graph(module);
  nb::class_<Stream> stream(
      module, "Stream", nb::is_weak_referenceable(),
      "An ordered queue of kernels on one device. Its methods take arrays of NumPy, PyTorch, "
      "CuPy, JAX, ... in the device's memory, without a copy; what a method writes is given to "
      "it.");
  stream
      .def(nb::new_([](std::shared_ptr<Runtime> runtime, const std::string& backend, std::uintptr_t native) {
             auto made =
                 std::make_shared<Stream>(runtime, backend_of(backend), reinterpret_cast<void*>(native));
             runtime->add(made);
             return made;
           }),
           nb::arg("runtime"), nb::arg("backend"), nb::arg("native") = 0,
           "native: on CUDA the number of a stream, such as torch.cuda.Stream().cuda_stream, which must "
           "outlive it.")
      .def("close", &Stream::close, "UsageError while arrays look into its memory.")
      .def("synchronize",
           [](const Stream& self) { call([&] { return encore_stream_synchronize(self.get()); }); })
      .def("empty", &empty, nb::arg("shape"), nb::arg("dtype") = "float32",
           "An array in the device's memory.")
      .def("zeros", &zeros, nb::arg("shape"), nb::arg("dtype") = "float32")
      .def("to_device", &to_device, nb::arg("values"),
           "A copy of an array of the host in the device's memory.")
      .def("to_host", &to_host, nb::arg("array"), "A copy as an array of NumPy; bfloat16 becomes float32.")
      .def(
          "record",
          [](nb::object self, const std::string& name, nb::object function) {
            auto graph = std::make_shared<Graph>(self, name, std::move(function));
            graph->stream()->runtime()->add(graph);
            return graph;
          },
          nb::arg("name"), nb::arg("function"),
          "Calls function(stream) twice, to load and to record what it launches; nothing runs. The graph "
          "keeps the "
          "arrays and functions that it was given.")
      .def(
          "launch", &launch, nb::arg("label"), nb::arg("function"), nb::arg("reads") = nb::tuple(),
          nb::arg("writes") = nb::tuple(),
          "Your own function as a node. On hosts function() is called by each replay, on any thread; on CUDA "
          "function(native) queues kernels on that stream, at once and while recording. Without reads and "
          "writes it "
          "waits for all before it, and all after it waits.")
      .def_prop_ro("native",
                   [](const Stream& self) {
                     void* native = nullptr;
                     call([&] { return encore_stream_native(self.get(), &native); });
                     return reinterpret_cast<std::uintptr_t>(native);
                   })
      .def_prop_ro("description",
                   [](const Stream& self) {
                     return text_of([&](char* text, std::size_t size, std::size_t* length) {
                       return encore_stream_description(self.get(), text, size, length);
                     });
                   })
      .def_prop_ro(
          "counters",
          [](const Stream& self) {
            std::uint64_t launches = 0, replays = 0;
            call([&] { return encore_stream_counters(self.get(), &launches, &replays); });
            return nb::make_tuple(launches, replays);
          },
          "(kernels launched, graphs replayed)");
  bind_kernels(stream);
}

}  // namespace encore::python
