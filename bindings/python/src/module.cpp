// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "configuration.hpp"
#include "handles.hpp"

namespace encore::python {

CallError::CallError()
    : status(encore_last_error_status()),
      sentence(encore_last_error()),
      where(std::string(encore_last_error_file()) + ":" + std::to_string(encore_last_error_line())) {}

Runtime::Runtime(int threads) {
  call([&] { return encore_runtime_create(threads, &runtime_); });
}

Runtime::~Runtime() {
  const nb::gil_scoped_release released;
  encore_runtime_destroy(runtime_);
}

encore_runtime* Runtime::get() const {
  if (runtime_ == nullptr)
    throw CallError(ENCORE_ERROR_USAGE, "the runtime is closed: make another one before it");
  return runtime_;
}

void Runtime::close() {
  if (runtime_ == nullptr) return;
  call([&] { return encore_runtime_destroy(runtime_); });
  runtime_ = nullptr;
}

void Runtime::close_all() {
  for (auto object = objects_.rbegin(); object != objects_.rend(); ++object)
    if (const auto alive = object->lock()) alive->close();
  objects_.clear();
  close();
}

nb::object Views::owner(std::shared_ptr<void> object) {
  struct View {
    std::shared_ptr<void> object;
    std::shared_ptr<std::atomic<int>> count;
  };
  auto* view = new View{std::move(object), count_};
  ++*view->count;
  return nb::capsule(view, [](void* memory) noexcept {
    auto* ended = static_cast<View*>(memory);
    const auto counted = ended->count;
    delete ended;  // may let other threads run, which must not close what it needs
    --*counted;
  });
}

void Views::require_none(const std::string& of) const {
  const int count = *count_;
  if (count == 0) return;
  throw CallError(ENCORE_ERROR_USAGE, std::to_string(count) + (count == 1 ? " array looks" : " arrays look") +
                                          " into the memory of the " + of + " that is to be closed: delete " +
                                          (count == 1 ? "it" : "them") + " first");
}

encore_backend backend_of(const std::string& name) {
  if (name == "serial") return ENCORE_SERIAL;
  if (name == "openmp") return ENCORE_OPENMP;
  if (name == "cuda") return ENCORE_CUDA;
  throw CallError(ENCORE_ERROR_USAGE, "backend '" + name + "' does not exist: use serial, openmp or cuda");
}

encore_type type_of(const std::string& name) {
  if (name == "float64") return ENCORE_FLOAT64;
  if (name == "float32") return ENCORE_FLOAT32;
  if (name == "bfloat16") return ENCORE_BFLOAT16;
  if (name == "int32") return ENCORE_INT32;
  throw CallError(ENCORE_ERROR_USAGE,
                  "type '" + name + "' does not exist here: use float64, float32, bfloat16 or int32");
}

std::size_t size_of(encore_type type) {
  if (type == ENCORE_FLOAT64) return 8;
  return type == ENCORE_BFLOAT16 ? 2 : 4;
}

std::int64_t elements_of(const std::vector<std::size_t>& shape, encore_type type) {
  if (std::ranges::find(shape, std::size_t{0}) != shape.end()) return 0;
  std::int64_t elements = 1, bytes = 0;
  bool too_many = false;
  for (const std::size_t extent : shape)
    too_many = too_many || __builtin_mul_overflow(elements, extent, &elements);
  if (too_many || __builtin_mul_overflow(elements, size_of(type), &bytes))
    throw CallError(ENCORE_ERROR_OUT_OF_MEMORY,
                    "an array of this shape has more bytes than any memory: make it smaller");
  return elements;
}

nb::dlpack::dtype dtype_of(encore_type type) {
  using Code = nb::dlpack::dtype_code;
  const Code code = type == ENCORE_INT32 ? Code::Int : type == ENCORE_BFLOAT16 ? Code::Bfloat : Code::Float;
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(type)), 1};
}

nb::object make_array(void* memory, encore_type type, const std::vector<std::size_t>& shape, bool on_cuda,
                      int device, nb::object owner) {
  if (!on_cuda && type != ENCORE_BFLOAT16)
    return nb::cast(nb::ndarray<nb::numpy>(memory, shape.size(), shape.data(), owner, nullptr, dtype_of(type),
                                           nb::device::cpu::value));
  return nb::cast(nb::ndarray<nb::array_api>(
      memory, shape.size(), shape.data(), owner, nullptr, dtype_of(type),
      on_cuda ? nb::device::cuda::value : nb::device::cpu::value, on_cuda ? device : 0));
}

Configuration::Configuration() {
  call([&] { return encore_configuration_create(&configuration_); });
}

Configuration::~Configuration() { encore_configuration_destroy(configuration_); }

namespace {

/// Settings as text, or as a dictionary of keys and values.
std::string assignments_of(const nb::object& settings) {
  if (nb::isinstance<nb::str>(settings)) return nb::cast<std::string>(settings);
  std::string text;
  if (nb::isinstance<nb::dict>(settings)) {
    for (const auto [key, value] : nb::cast<nb::dict>(settings)) {
      const nb::object shown =
          nb::isinstance<nb::bool_>(value) ? nb::str(value).attr("lower")() : nb::str(value);
      text += nb::cast<std::string>(nb::str(key)) + "=" + nb::cast<std::string>(shown) + "\n";
    }
    return text;
  }
  for (const nb::handle assignment : settings) text += nb::cast<std::string>(assignment) + "\n";
  return text;
}

void bind_configuration(nb::module_& module) {
  using Path = std::optional<std::string>;
  nb::class_<Configuration>(
      module, "Configuration",
      "Settings of a model and its training, from several sources. A later one wins: defaults, "
      "preset, model of a checkpoint, JSON file, JSON text or dictionary, settings.")
      .def(
          "__init__",
          [](Configuration* self, const Path& preset, const Path& checkpoint, const Path& file,
             nb::object json, nb::object settings) {
            new (self) Configuration;
            const auto add = [&](auto function, const std::string& argument) {
              call([&] { return function(self->get(), argument.c_str()); });
            };
            try {
              if (preset) add(encore_configuration_preset, *preset);
              if (checkpoint) add(encore_configuration_checkpoint, *checkpoint);
              if (file) add(encore_configuration_file, *file);
              if (nb::isinstance<nb::str>(json)) {
                add(encore_configuration_json, nb::cast<std::string>(json));
              } else if (!json.is_none()) {
                add(encore_configuration_json,
                    nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(json)));
              }
              if (!settings.is_none()) add(encore_configuration_set, assignments_of(settings));
            } catch (...) {
              self->~Configuration();
              throw;
            }
          },
          nb::kw_only(), nb::arg("preset") = nb::none(), nb::arg("checkpoint") = nb::none(),
          nb::arg("file") = nb::none(), nb::arg("json") = nb::none(), nb::arg("settings") = nb::none(),
          "settings: a dictionary, a list of 'key=value', or one text of them.")
      .def(
          "text",
          [](const Configuration& self) {
            return text_of([&](char* text, std::size_t size, std::size_t* length) {
              return encore_configuration_text(self.get(), text, size, length);
            });
          },
          "All of it, resolved and checked, as JSON.")
      .def(
          "notes",
          [](const Configuration& self) {
            const std::string lines = text_of([&](char* text, std::size_t size, std::size_t* length) {
              return encore_configuration_notes(self.get(), text, size, length);
            });
            return nb::cast<std::vector<std::string>>(nb::str(lines.c_str()).attr("splitlines")());
          },
          "What was changed or ignored on the way.")
      .def("__str__", [](nb::handle self) { return self.attr("text")(); });
}

void bind_runtime(nb::module_& module) {
  nb::class_<Runtime>(
      module, "Runtime", nb::is_weak_referenceable(),
      "Kokkos, initialised once in a process, and all that lives on it. As a context it closes what "
      "is left of that, the youngest first, and then itself.")
      .def(nb::new_([](int threads) { return std::make_shared<Runtime>(threads); }), nb::arg("threads") = 0,
           "threads: of the host; 0 as OpenMP decides.")
      .def("close", &Runtime::close,
           "Finalises Kokkos. UsageError while trainers, streams or graphs are open.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__",
          [](Runtime& self, nb::object, nb::object, nb::object) {
            self.close_all();
            return false;
          },
          nb::arg("type") = nb::none(), nb::arg("value") = nb::none(), nb::arg("traceback") = nb::none())
      .def("objects", [](const Runtime& self) {
        std::size_t count = 0;
        call([&] { return encore_runtime_objects(self.get(), &count); });
        return count;
      });
}

/// Makes the exception of encore.errors that belongs to the status.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const CallError& error) {
    const nb::object value =
        nb::module_::import_("encore.errors").attr("make")(error.status, error.sentence, error.where);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
  }
}

}  // namespace

}  // namespace encore::python

NB_MODULE(_encore, module) {
  namespace nb = nanobind;
  // What Python has not collected when it ends is no leak worth a message.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(encore::python::translate);
  module.attr("__version__") = encore_version();
  module.attr("git_revision") = encore_git_revision();
  module.def(
      "backends",
      [] {
        std::vector<std::string> names;
        if (encore_has_backend(ENCORE_SERIAL)) names.emplace_back("serial");
        if (encore_has_backend(ENCORE_OPENMP)) names.emplace_back("openmp");
        if (encore_has_backend(ENCORE_CUDA)) names.emplace_back("cuda");
        return names;
      },
      "Backends of this build.");
  encore::python::bind_runtime(module);
  encore::python::bind_configuration(module);
  encore::python::bind_trainer(module);
  encore::python::bind_stream(module);
}
