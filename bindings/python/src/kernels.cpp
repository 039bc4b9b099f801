// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arguments.hpp"

namespace encore::python {

const char* name_of(encore_type type) {
  switch (type) {
    case ENCORE_FLOAT64: return "float64";
    case ENCORE_FLOAT32: return "float32";
    case ENCORE_BFLOAT16: return "bfloat16";
    case ENCORE_INT32: return "int32";
  }
  return "unknown";
}

encore_type type_of(nb::dlpack::dtype dtype, const char* name) {
  for (const encore_type type : {ENCORE_FLOAT64, ENCORE_FLOAT32, ENCORE_BFLOAT16, ENCORE_INT32})
    if (dtype == dtype_of(type)) return type;
  throw CallError(ENCORE_ERROR_USAGE,
                  "argument '" + std::string(name) + "' is neither float64, float32, bfloat16 nor int32");
}

void Argument::fail(const std::string& what) const {
  throw CallError(ENCORE_ERROR_USAGE, "argument '" + std::string(name_) + "' " + what);
}

void Argument::check_place(const Stream& stream, int device_type) const {
  const bool on_cuda =
      device_type == nb::device::cuda::value || device_type == nb::device::cuda_managed::value;
  if (stream.backend() == ENCORE_CUDA) {
    if (!on_cuda) fail("is not in the GPU's memory, where this stream works");
  } else if (device_type != nb::device::cpu::value && device_type != nb::device::cuda_host::value) {
    fail("is not in the host's memory, where this stream works");
  }
}

const Argument& Argument::require_type(encore_type type) const {
  if (type_ != type) fail(std::string("is of type ") + name_of(type_) + ", not " + name_of(type));
  return *this;
}

const Argument& Argument::require_elements(std::int64_t count) const {
  if (elements() != count)
    fail("has " + std::to_string(elements()) + " elements, not " + std::to_string(count));
  return *this;
}

namespace {

using OptionalInput = std::optional<Input>;
using OptionalOutput = std::optional<Output>;

/// The arguments of one kernel: checked, and kept by the graph that is being recorded.
class Arguments {
 public:
  explicit Arguments(Stream& stream) : stream_(stream) {}

  template <class Array>
  Argument any(const Array& array, const char* name) {
    Argument argument(stream_, array, name);
    stream_.keep(array);
    return argument;
  }
  template <class Array>
  Argument like(const Array& array, const char* name, encore_type type, std::int64_t elements) {
    Argument argument = any(array, name);
    argument.require_type(type).require_elements(elements);
    return argument;
  }
  template <class Array>
  void* optional(const std::optional<Array>& array, const char* name, encore_type type,
                 std::int64_t elements) {
    return array ? like(*array, name, type, elements).data() : nullptr;
  }
  /// A float64 number in the device's memory.
  double* number(const Output& array, const char* name) {
    return static_cast<double*>(like(array, name, ENCORE_FLOAT64, 1).data());
  }

  /// Memory for a kernel's own use, as a graph needs it too.
  template <class Ask>
  void* workspace(const std::optional<Output>& given, const Ask& ask) {
    std::size_t bytes = 0;
    call([&] { return ask(&bytes); });
    if (bytes == 0) return nullptr;
    if (!given)
      throw CallError(ENCORE_ERROR_USAGE, "argument 'workspace' is missing: pass an array of at least " +
                                              std::to_string(bytes) + " bytes");
    const Argument argument = any(*given, "workspace");
    if (argument.bytes() < bytes)
      throw CallError(ENCORE_ERROR_USAGE, "argument 'workspace' has " + std::to_string(argument.bytes()) +
                                              " bytes, but " + std::to_string(bytes) + " are needed");
    return argument.data();
  }

 private:
  Stream& stream_;
};

std::int64_t dimension(const Argument& argument, bool transposed, int which, const char* name) {
  if (argument.shape().size() != 2)
    throw CallError(ENCORE_ERROR_USAGE, "argument '" + std::string(name) + "' has not two dimensions");
  return static_cast<std::int64_t>(
      argument.shape()[static_cast<std::size_t>(transposed ? 1 - which : which)]);
}

void multiply(Stream& stream, const Input& first, const Input& second, const Output& result,
              bool transpose_first, bool transpose_second, float alpha, float beta,
              const OptionalInput& bias) {
  Arguments arguments(stream);
  const Argument a = arguments.any(first, "first"), b = arguments.any(second, "second"),
                 c = arguments.any(result, "result");
  b.require_type(a.type());
  const std::int64_t rows = dimension(a, transpose_first, 0, "first"),
                     inner = dimension(a, transpose_first, 1, "first"),
                     columns = dimension(b, transpose_second, 1, "second");
  if (dimension(b, transpose_second, 0, "second") != inner || dimension(c, false, 0, "result") != rows ||
      dimension(c, false, 1, "result") != columns)
    throw CallError(ENCORE_ERROR_CONFIGURATION, "the shapes of first, second and result do not fit together");
  const void* const added = arguments.optional(bias, "bias", a.type(), columns);
  call([&] {
    return encore_multiply(stream.get(), a.type(), c.type(), transpose_first, a.data(), transpose_second,
                           b.data(), c.data(), rows, inner, columns, alpha, beta, added);
  });
}

void add(Stream& stream, const Input& first, const Input& second, const Output& output) {
  Arguments arguments(stream);
  const Argument a = arguments.any(first, "first");
  const Argument b = arguments.like(second, "second", a.type(), a.elements());
  const Argument c = arguments.like(output, "output", a.type(), a.elements());
  call([&] { return encore_add(stream.get(), a.type(), a.data(), b.data(), c.data(), a.elements()); });
}

void fill(Stream& stream, const Output& values, double value) {
  const Argument a = Arguments(stream).any(values, "values");
  call([&] { return encore_fill(stream.get(), a.type(), a.data(), a.elements(), value); });
}

void fill_normal(Stream& stream, const Output& values, double mean, double deviation, std::uint64_t seed,
                 std::uint32_t segment) {
  const Argument a = Arguments(stream).any(values, "values");
  call([&] {
    return encore_fill_normal(stream.get(), a.type(), a.data(), a.elements(), mean, deviation, seed, segment);
  });
}

void convert(Stream& stream, const Input& input, const Output& output) {
  Arguments arguments(stream);
  const Argument a = arguments.any(input, "input"), b = arguments.any(output, "output");
  b.require_elements(a.elements());
  call([&] { return encore_convert(stream.get(), a.type(), a.data(), b.type(), b.data(), a.elements()); });
}

void copy(Stream& stream, const Input& source, const Output& destination) {
  Arguments arguments(stream);
  const Argument a = arguments.any(source, "source");
  const Argument b = arguments.like(destination, "destination", a.type(), a.elements());
  call([&] { return encore_copy(stream.get(), b.data(), a.data(), a.bytes()); });
}

void clear(Stream& stream, const Output& array) {
  const Argument a = Arguments(stream).any(array, "array");
  call([&] { return encore_clear(stream.get(), a.data(), a.bytes()); });
}

void rms_norm(Stream& stream, const Input& input, const Input& weight, const Output& output,
              const Output& inverse_rms, double epsilon) {
  Arguments arguments(stream);
  const Argument x = arguments.any(input, "input");
  const Argument w = arguments.like(weight, "weight", x.type(), x.columns());
  const Argument y = arguments.like(output, "output", x.type(), x.elements());
  const Argument r = arguments.like(inverse_rms, "inverse_rms", accumulator_of(x.type()), x.rows());
  call([&] {
    return encore_rms_norm_forward(stream.get(), x.type(), x.data(), w.data(), y.data(), r.data(), x.rows(),
                                   x.columns(), epsilon);
  });
}

void rms_norm_backward(Stream& stream, const Input& input, const Input& weight, const Input& inverse_rms,
                       const Input& output_gradient, const Output& input_gradient,
                       const Output& weight_gradient, const OptionalOutput& workspace,
                       const OptionalInput& residual_gradient, bool accumulate) {
  Arguments arguments(stream);
  const Argument x = arguments.any(input, "input");
  const Argument w = arguments.like(weight, "weight", x.type(), x.columns());
  const Argument r = arguments.like(inverse_rms, "inverse_rms", accumulator_of(x.type()), x.rows());
  const Argument dy = arguments.like(output_gradient, "output_gradient", x.type(), x.elements());
  const Argument dx = arguments.like(input_gradient, "input_gradient", x.type(), x.elements());
  const Argument dw = arguments.any(weight_gradient, "weight_gradient");
  dw.require_elements(x.columns());
  const void* const residual =
      arguments.optional(residual_gradient, "residual_gradient", x.type(), x.elements());
  void* const scratch = arguments.workspace(workspace, [&](std::size_t* bytes) {
    return encore_norm_workspace(x.type(), x.rows(), x.columns(), bytes);
  });
  call([&] {
    return encore_rms_norm_backward(stream.get(), x.type(), dw.type(), x.data(), w.data(), r.data(),
                                    dy.data(), residual, dx.data(), dw.data(), x.rows(), x.columns(),
                                    accumulate, scratch);
  });
}

void layer_norm(Stream& stream, const Input& input, const Input& weight, const OptionalInput& bias,
                const Output& output, const Output& mean, const Output& inverse_std, double epsilon) {
  Arguments arguments(stream);
  const Argument x = arguments.any(input, "input");
  const Argument w = arguments.like(weight, "weight", x.type(), x.columns());
  const void* const b = arguments.optional(bias, "bias", x.type(), x.columns());
  const Argument y = arguments.like(output, "output", x.type(), x.elements());
  const Argument m = arguments.like(mean, "mean", accumulator_of(x.type()), x.rows());
  const Argument r = arguments.like(inverse_std, "inverse_std", accumulator_of(x.type()), x.rows());
  call([&] {
    return encore_layer_norm_forward(stream.get(), x.type(), x.data(), w.data(), b, y.data(), m.data(),
                                     r.data(), x.rows(), x.columns(), epsilon);
  });
}

encore_activation activation_of(const std::string& name) {
  if (name == "gelu") return ENCORE_GELU;
  if (name == "gelu_tanh") return ENCORE_GELU_TANH;
  if (name == "relu_squared") return ENCORE_RELU_SQUARED;
  if (name == "swiglu") return ENCORE_SWIGLU;
  throw CallError(ENCORE_ERROR_USAGE,
                  "activation '" + name + "' does not exist: use gelu, gelu_tanh, relu_squared or swiglu");
}

std::int64_t elements_into(encore_activation kind, const Argument& output) {
  return kind == ENCORE_SWIGLU ? 2 * output.elements() : output.elements();
}

void activation(Stream& stream, const std::string& name, const Input& input, const Output& output) {
  Arguments arguments(stream);
  const encore_activation kind = activation_of(name);
  const Argument y = arguments.any(output, "output");
  const Argument x = arguments.like(input, "input", y.type(), elements_into(kind, y));
  call([&] {
    return encore_activation_forward(stream.get(), y.type(), kind, x.data(), y.data(), y.rows(), y.columns());
  });
}

void activation_backward(Stream& stream, const std::string& name, const Input& input,
                         const Input& output_gradient, const Output& input_gradient) {
  Arguments arguments(stream);
  const encore_activation kind = activation_of(name);
  const Argument dy = arguments.any(output_gradient, "output_gradient");
  const Argument x = arguments.like(input, "input", dy.type(), elements_into(kind, dy));
  const Argument dx = arguments.like(input_gradient, "input_gradient", dy.type(), x.elements());
  call([&] {
    return encore_activation_backward(stream.get(), dy.type(), kind, x.data(), dy.data(), dx.data(),
                                      dy.rows(), dy.columns());
  });
}

void cross_entropy(Stream& stream, const Output& logits, const Input& labels, const Output& row_losses,
                   const Output& count, const Output& loss, bool write_gradient) {
  Arguments arguments(stream);
  const Argument x = arguments.any(logits, "logits");
  const Argument l = arguments.like(labels, "labels", ENCORE_INT32, x.rows());
  const Argument r = arguments.like(row_losses, "row_losses", accumulator_of(x.type()), x.rows());
  double* const counted = arguments.number(count, "count");
  double* const mean = arguments.number(loss, "loss");
  call([&] {
    return encore_cross_entropy(stream.get(), x.type(), x.data(), static_cast<const std::int32_t*>(l.data()),
                                r.data(), counted, mean, x.rows(), x.columns(), write_gradient);
  });
}

void adamw(Stream& stream, const Input& gradients, const Output& weights, const Output& first_moment,
           const Output& second_moment, const Input& scalars, const Output& norm,
           const OptionalOutput& workspace, const OptionalOutput& master,
           std::optional<std::int64_t> decayed) {
  Arguments arguments(stream);
  const Argument w = arguments.any(weights, "weights");
  const Argument g = arguments.any(gradients, "gradients");
  g.require_elements(w.elements());
  const Argument m = arguments.any(first_moment, "first_moment");
  m.require_elements(w.elements());
  const Argument v = arguments.like(second_moment, "second_moment", m.type(), w.elements());
  const Argument s = arguments.like(scalars, "scalars", ENCORE_FLOAT64, ENCORE_ADAMW_SCALARS);
  double* const length = arguments.number(norm, "norm");
  void* const copy = arguments.optional(master, "master", accumulator_of(w.type()), w.elements());
  void* const scratch =
      arguments.workspace(workspace, [](std::size_t* bytes) { return encore_adamw_workspace(bytes); });
  call([&] {
    return encore_adamw(stream.get(), w.type(), g.type(), m.type(), g.data(), w.data(), copy, m.data(),
                        v.data(), w.elements(), decayed.value_or(w.elements()),
                        static_cast<const double*>(s.data()), length, scratch);
  });
}

}  // namespace

void bind_kernels(nb::class_<Stream>& stream) {
  const auto none = nb::none();
  stream
      .def("multiply", &multiply, nb::arg("first"), nb::arg("second"), nb::arg("result"),
           nb::arg("transpose_first") = false, nb::arg("transpose_second") = false, nb::arg("alpha") = 1.0F,
           nb::arg("beta") = 0.0F, nb::arg("bias") = none,
           "result = alpha * first @ second + beta * result + bias, of two dimensions each.")
      .def("add", &add, nb::arg("first"), nb::arg("second"), nb::arg("output"), "output = first + second.")
      .def("fill", &fill, nb::arg("values"), nb::arg("value"))
      .def("fill_normal", &fill_normal, nb::arg("values"), nb::arg("mean") = 0.0, nb::arg("deviation") = 1.0,
           nb::arg("seed") = 0, nb::arg("segment") = 0, "Normal numbers of (seed, segment, place) alone.")
      .def("convert", &convert, nb::arg("input"), nb::arg("output"), "Between float32 and bfloat16.")
      .def("copy", &copy, nb::arg("source"), nb::arg("destination"), "Inside the device's memory.")
      .def("clear", &clear, nb::arg("array"), "Sets all bits to zero, of any type.")
      .def("rms_norm", &rms_norm, nb::arg("input"), nb::arg("weight"), nb::arg("output"),
           nb::arg("inverse_rms"), nb::arg("epsilon") = 1e-5,
           "By row of the last dimension; inverse_rms [rows] is kept for backward.")
      .def("rms_norm_backward", &rms_norm_backward, nb::arg("input"), nb::arg("weight"),
           nb::arg("inverse_rms"), nb::arg("output_gradient"), nb::arg("input_gradient"),
           nb::arg("weight_gradient"), nb::arg("workspace") = none, nb::arg("residual_gradient") = none,
           nb::arg("accumulate") = false)
      .def("layer_norm", &layer_norm, nb::arg("input"), nb::arg("weight"), nb::arg("bias").none(),
           nb::arg("output"), nb::arg("mean"), nb::arg("inverse_std"), nb::arg("epsilon") = 1e-5)
      .def("activation", &activation, nb::arg("kind"), nb::arg("input"), nb::arg("output"),
           "kind: gelu, gelu_tanh, relu_squared, or swiglu, whose input has gate and up in each row.")
      .def("activation_backward", &activation_backward, nb::arg("kind"), nb::arg("input"),
           nb::arg("output_gradient"), nb::arg("input_gradient"))
      .def(
          "cross_entropy", &cross_entropy, nb::arg("logits"), nb::arg("labels"), nb::arg("row_losses"),
          nb::arg("count"), nb::arg("loss"), nb::arg("write_gradient") = false,
          "loss and count: float64 [1]. With write_gradient the logits become the gradient of the mean loss.")
      .def("adamw", &adamw, nb::arg("gradients"), nb::arg("weights"), nb::arg("first_moment"),
           nb::arg("second_moment"), nb::arg("scalars"), nb::arg("norm"), nb::arg("workspace") = none,
           nb::arg("master") = none, nb::arg("decayed") = none,
           "scalars: float64 [9] on the device: learning rate, weight decay, beta1, beta2, epsilon, clip, "
           "step, "
           "gradient scale, skip above.");
}

}  // namespace encore::python
