// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>

#include "configuration.hpp"
#include "handles.hpp"

namespace encore::python {

Trainer::Trainer(std::shared_ptr<Runtime> runtime, encore_configuration* configuration)
    : runtime_(std::move(runtime)) {
  encore_runtime* const on = runtime_->get();
  call([&] { return encore_trainer_create(on, configuration, &trainer_); });
}

Trainer::~Trainer() {
  const nb::gil_scoped_release released;
  encore_trainer_destroy(trainer_);
}

encore_trainer* Trainer::get() const {
  if (trainer_ == nullptr) throw CallError(ENCORE_ERROR_USAGE, "the trainer is closed: make another one");
  return trainer_;
}

void Trainer::close() {
  if (trainer_ == nullptr) return;
  views_.require_none("trainer");
  call([&] { return encore_trainer_destroy(trainer_); });
  trainer_ = nullptr;
}

namespace {

using Tokens = nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>;

std::array<std::int64_t, 3> batch_shape(const Trainer& trainer) {
  std::array<std::int64_t, 3> shape{};
  call([&] { return encore_trainer_batch_shape(trainer.get(), shape.data()); });
  return shape;
}

void require_same_shape(const Tokens& ids, const Tokens& labels) {
  bool same = ids.ndim() == labels.ndim();
  for (std::size_t i = 0; same && i < ids.ndim(); ++i) same = ids.shape(i) == labels.shape(i);
  if (!same) throw CallError(ENCORE_ERROR_USAGE, "ids and labels have different shapes");
}

/// [microbatches, sequences, tokens] of what may lack its first dimension.
std::array<std::int64_t, 3> extents_of(const Trainer& trainer, const Tokens& ids) {
  const auto extent = [&](std::size_t i) { return static_cast<std::int64_t>(ids.shape(i)); };
  if (ids.ndim() == 3) return {extent(0), extent(1), extent(2)};
  const std::int64_t microbatches = batch_shape(trainer)[0];
  if (ids.ndim() == 2 && extent(0) % microbatches == 0)
    return {microbatches, extent(0) / microbatches, extent(1)};
  throw CallError(
      ENCORE_ERROR_USAGE,
      "ids must be [microbatches, sequences, tokens], or [microbatches * sequences, tokens] with " +
          std::to_string(microbatches) + " microbatches");
}

void set_batch(const Trainer& trainer, const Tokens& ids, const Tokens& labels) {
  require_same_shape(ids, labels);
  const auto shape = extents_of(trainer, ids);
  call([&] { return encore_trainer_set_batch(trainer.get(), ids.data(), labels.data(), shape.data()); });
}

double evaluate(const Trainer& trainer, const Tokens& ids, const Tokens& labels) {
  require_same_shape(ids, labels);
  const std::int64_t tokens = batch_shape(trainer)[2];
  if (ids.ndim() != 2 || static_cast<std::int64_t>(ids.shape(1)) != tokens)
    throw CallError(ENCORE_ERROR_USAGE, "ids must be [sequences, " + std::to_string(tokens) + "]");
  double loss = 0;
  call([&] {
    return encore_trainer_evaluate(trainer.get(), ids.data(), labels.data(),
                                   static_cast<std::int64_t>(ids.shape(0)), &loss);
  });
  return loss;
}

encore_step_result step(const Trainer& trainer, std::optional<double> learning_rate, bool eagerly) {
  if (!learning_rate) {
    learning_rate.emplace();
    call([&] { return encore_trainer_learning_rate(trainer.get(), &*learning_rate); });
  }
  encore_step_result result{};
  result.size = sizeof result;
  const auto function = eagerly ? encore_trainer_step_eagerly : encore_trainer_step;
  call([&] { return function(trainer.get(), *learning_rate, &result); });
  return result;
}

encore_parameter_array array_of(const std::string& name) {
  constexpr std::array names{"weights", "gradients", "first_moment", "second_moment", "master"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<encore_parameter_array>(i);
  throw CallError(ENCORE_ERROR_USAGE,
                  "array '" + name +
                      "' does not exist: use weights, gradients, first_moment, second_moment or "
                      "master");
}

encore_parameter parameter_of(const Trainer& trainer, const std::string& name, const std::string& array) {
  encore_parameter parameter{};
  parameter.size = sizeof parameter;
  call([&] { return encore_trainer_parameter(trainer.get(), array_of(array), name.c_str(), &parameter); });
  return parameter;
}

std::vector<std::size_t> shape_of(const encore_parameter& parameter) {
  return {parameter.shape, parameter.shape + parameter.dimensions};
}

bool on_cuda(const Trainer& trainer) {
  return text_of([&](char* text, std::size_t size, std::size_t* length) {
           return encore_trainer_configuration(trainer.get(), text, size, length);
         }).find("\"backend\": \"cuda\"") != std::string::npos;
}

nb::object view(const std::shared_ptr<Trainer>& trainer, const std::string& name, const std::string& array) {
  const encore_parameter parameter = parameter_of(*trainer, name, array);
  int device = -1;
  call([&] { return encore_runtime_device(trainer->runtime()->get(), &device); });
  return make_array(parameter.memory, static_cast<encore_type>(parameter.type), shape_of(parameter),
                    on_cuda(*trainer), device, trainer->views().owner(trainer));
}

/// Numbers that an array of NumPy takes over.
nb::object numbers(std::vector<float> values, const std::vector<std::size_t>& shape) {
  auto* kept = new std::vector<float>(std::move(values));
  nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<std::vector<float>*>(memory); });
  return make_array(kept->data(), ENCORE_FLOAT32, shape, false, 0, owner);
}

nb::object read(const Trainer& trainer, const std::string& name, const std::string& array) {
  const encore_parameter parameter = parameter_of(trainer, name, array);
  std::vector<float> values(static_cast<std::size_t>(parameter.elements));
  call([&] {
    return encore_trainer_read(trainer.get(), array_of(array), name.c_str(), values.data(), values.size());
  });
  return numbers(std::move(values), shape_of(parameter));
}

void write(const Trainer& trainer, const std::string& name,
           const nb::ndarray<const float, nb::c_contig, nb::device::cpu>& values, const std::string& array) {
  call([&] {
    return encore_trainer_write(trainer.get(), array_of(array), name.c_str(), values.data(), values.size());
  });
}

nb::object logits(const Trainer& trainer) {
  std::array<std::int64_t, 3> extents{};
  call([&] { return encore_trainer_logits_shape(trainer.get(), extents.data()); });
  const std::vector<std::size_t> shape(extents.begin(), extents.end());
  std::vector<float> values(shape[0] * shape[1] * shape[2]);
  if (values.empty()) throw CallError(ENCORE_ERROR_USAGE, "there are no logits before the first evaluate()");
  call([&] { return encore_trainer_logits(trainer.get(), values.data(), values.size()); });
  return numbers(std::move(values), shape);
}

std::vector<std::string> names(const Trainer& trainer) {
  std::size_t count = 0;
  call([&] { return encore_trainer_parameter_count(trainer.get(), &count); });
  std::vector<std::string> all;
  for (std::size_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    call([&] { return encore_trainer_parameter_name(trainer.get(), i, &name); });
    all.emplace_back(name);
  }
  return all;
}

using TextFunction = int (*)(const encore_trainer*, char*, std::size_t, std::size_t*);
auto text_getter(TextFunction function) {
  return [function](const Trainer& trainer) {
    return text_of([&](char* text, std::size_t size, std::size_t* length) {
      return function(trainer.get(), text, size, length);
    });
  };
}

void bind_step_result(nb::module_& module) {
  nb::class_<encore_step_result>(module, "StepResult", "What one step gave.")
      .def_ro("step", &encore_step_result::step, "1 for the first")
      .def_ro("loss", &encore_step_result::loss,
              "before the update, mean over the labels that count, in nats")
      .def_ro("gradient_norm", &encore_step_result::gradient_norm, "before clipping")
      .def_ro("milliseconds", &encore_step_result::milliseconds)
      .def_ro("device_milliseconds", &encore_step_result::device_milliseconds)
      .def_ro("tokens", &encore_step_result::tokens)
      .def_ro("graph_nodes", &encore_step_result::graph_nodes, "replayed")
      .def_ro("eager_launches", &encore_step_result::eager_launches, "kernels launched one by one")
      .def_ro("fallbacks", &encore_step_result::fallbacks)
      .def_ro("graph_bytes", &encore_step_result::graph_bytes)
      .def_prop_ro("skipped", [](const encore_step_result& self) { return self.skipped != 0; })
      .def_prop_ro(
          "mode",
          [](const encore_step_result& self) {
            return self.mode == ENCORE_REPLAY ? "replay" : self.mode == ENCORE_CAPTURE ? "capture" : "eager";
          },
          "'eager', 'capture' or 'replay'")
      .def("__repr__", [](const encore_step_result& self) {
        return "StepResult(step=" + std::to_string(self.step) + ", loss=" + std::to_string(self.loss) + ")";
      });
}

}  // namespace

void bind_trainer(nb::module_& module) {
  bind_step_result(module);
  nb::class_<Trainer>(
      module, "Trainer", nb::is_weak_referenceable(),
      "A model with its optimizer on one device. Calls from several threads come one after the other; "
      "the GIL is free meanwhile.")
      .def(nb::new_([](std::shared_ptr<Runtime> runtime, const Configuration& configuration) {
             auto trainer = std::make_shared<Trainer>(runtime, configuration.get());
             runtime->add(trainer);
             return trainer;
           }),
           nb::arg("runtime"), nb::arg("configuration"))
      .def("close", &Trainer::close, "Gives the memory back. UsageError while arrays look into it.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__",
          [](Trainer& self, nb::object, nb::object, nb::object) {
            self.close();
            return false;
          },
          nb::arg("type") = nb::none(), nb::arg("value") = nb::none(), nb::arg("traceback") = nb::none())
      .def("set_batch", &set_batch, nb::arg("ids"), nb::arg("labels"),
           "The next step's tokens, [microbatches, sequences, tokens] int32; a negative label is ignored.")
      .def(
          "step", [](const Trainer& self, std::optional<double> rate) { return step(self, rate, false); },
          nb::arg("learning_rate") = nb::none(),
          "Trains one step; None: at the rate of the configuration's schedule.")
      .def(
          "step_eagerly",
          [](const Trainer& self, std::optional<double> rate) { return step(self, rate, true); },
          nb::arg("learning_rate") = nb::none(), "The same without graphs.")
      .def("evaluate", &evaluate, nb::arg("ids"), nb::arg("labels"),
           "Loss of [sequences, train.seq], at most train.microbatch sequences; changes no training state.")
      .def("logits", &logits, "[sequences, train.seq, vocabulary] float32 of the last evaluate().")
      .def_prop_ro("steps_done",
                   [](const Trainer& self) {
                     std::int64_t steps = 0;
                     call([&] { return encore_trainer_steps_done(self.get(), &steps); });
                     return steps;
                   })
      .def_prop_ro("batch_shape", &batch_shape, "(microbatches, sequences, tokens) of the configuration")
      .def("names", &names, "Parameters in the model's own names.")
      .def("array", &view, nb::arg("name"), nb::arg("array") = "weights",
           "A parameter where it lies, by its own name or that of a published file: an array of NumPy on "
           "hosts, an "
           "array for DLPack on CUDA and for bfloat16. array: weights, gradients, first_moment, "
           "second_moment or "
           "master. Steps overwrite it; it keeps the trainer alive.")
      .def("read", &read, nb::arg("name"), nb::arg("array") = "weights", "A copy as float32.")
      .def("write", &write, nb::arg("name"), nb::arg("values"), nb::arg("array") = "weights",
           "Sets it from float32, rounded to its type; weights together with master weights.")
      .def(
          "set_scalar",
          [](const Trainer& self, const std::string& name, double value) {
            call([&] { return encore_trainer_set_scalar(self.get(), name.c_str(), value); });
          },
          nb::arg("name"), nb::arg("value"),
          "Changes weight_decay, clip, dropout, ... for all steps to come.")
      .def("end_warmup",
           [](const Trainer& self) { call([&] { return encore_trainer_end_warmup(self.get()); }); })
      .def("reset_graphs",
           [](const Trainer& self) { call([&] { return encore_trainer_reset_graphs(self.get()); }); })
      .def(
          "save",
          [](const Trainer& self, const std::string& path) {
            call([&] { return encore_trainer_save(self.get(), path.c_str()); });
          },
          nb::arg("path"), "A safetensors file of weights and of what a resume needs.")
      .def(
          "load",
          [](const Trainer& self, const std::string& path) {
            int resumes = 0;
            call([&] { return encore_trainer_load(self.get(), path.c_str(), &resumes); });
            return resumes != 0;
          },
          nb::arg("path"), "True when training goes on where it was saved; False for weights alone.")
      .def("configuration_text", text_getter(encore_trainer_configuration))
      .def("plan", text_getter(encore_trainer_plan), "Runs, segments and buffers of a step.")
      .def("refusal", text_getter(encore_trainer_refusal), "Empty, or why capturing was given up.")
      .def("eager_reason", text_getter(encore_trainer_eager_reason),
           "Empty, or why the last step ran eagerly although graphs were asked for.");
}

}  // namespace encore::python
