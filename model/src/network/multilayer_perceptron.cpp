// SPDX-License-Identifier: Apache-2.0
#include "network_memory.hpp"

#include <encore/backend/launch.hpp>
#include <encore/kernels/activation.hpp>
#include <encore/kernels/initialization.hpp>

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace encore::model {

using backend::Matrix;
using backend::MatrixOperand;
using backend::Stream;
using backend::Transpose;
using backend::Vector;
using kernels::StridedMatrix;

namespace {

struct NextStep {
  double* step;
  KOKKOS_FUNCTION void operator()(std::int64_t) const { *step += 1; }
};

/// A matrix of either layout as an operand, and whether that is the matrix or its transpose.
template <class T>
struct OperandOfView {
  explicit OperandOfView(const StridedMatrix<const T>& m) {
    if (m.columns == 1 || m.column_stride == 1) {
      operand = {m.data, m.rows, m.columns, std::max(m.row_stride, m.columns)};
    } else {
      operand = {m.data, m.columns, m.rows, std::max(m.column_stride, m.rows)};
      transpose = Transpose::yes;
    }
  }
  /// The rows [begin, end) of the view.
  OperandOfView rows(std::int64_t begin, std::int64_t end) const {
    OperandOfView part = *this;
    part.operand.data += transpose == Transpose::no ? begin * operand.stride : begin;
    (transpose == Transpose::no ? part.operand.rows : part.operand.columns) = end - begin;
    return part;
  }
  Transpose transposed() const { return transpose == Transpose::no ? Transpose::yes : Transpose::no; }

  MatrixOperand<const T> operand;
  Transpose transpose = Transpose::no;
};

template <class T>
StridedMatrix<T> dense(T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns, 1};
}

template <class Space, class T>
void activate(Stream<Space>& stream, NetworkActivation activation, Matrix<const T, Space> from,
              Matrix<T, Space> to) {
  if (activation == NetworkActivation::relu_squared)
    return kernels::relu_squared_forward<Space, T>(stream, from, to);
  kernels::gelu_forward<Space, T>(
      stream, activation == NetworkActivation::gelu ? kernels::Gelu::exact : kernels::Gelu::tanh, from, to);
}

/// raised turns into its own gradient.
template <class Space, class T>
void activate_backward(Stream<Space>& stream, NetworkActivation activation,
                       Matrix<const T, Space> output_gradient, Matrix<T, Space> raised) {
  if (activation == NetworkActivation::relu_squared)
    return kernels::relu_squared_backward<Space, T>(stream, raised, output_gradient, raised);
  kernels::gelu_backward<Space, T>(
      stream, activation == NetworkActivation::gelu ? kernels::Gelu::exact : kernels::Gelu::tanh, raised,
      output_gradient, raised);
}

/// The gradients of one layer's weights and bias; nothing but the optimizer waits for them.
template <class Space, class T>
void parameter_gradients(Stream<Space>& stream, backend::Blas<Space>& blas, const NetworkLayer<T>& layer,
                         const StridedMatrix<const T>& input, Matrix<const T, Space> output_gradient,
                         backend::Accumulator<T>* gradients) {
  using Sum = backend::Accumulator<T>;
  const backend::BesideScope<Space> beside(stream);
  const auto rows = static_cast<std::int64_t>(output_gradient.extent(0));
  const std::int64_t parts = layer.parts == nullptr ? 1 : weight_gradient_parts<Space>(rows);
  const std::int64_t weights = layer.inputs * layer.outputs;
  const OperandOfView<T> from(input), to(dense<const T>(output_gradient.data(), rows, layer.outputs));
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
    Sum* result = parts == 1 ? gradients + layer.weight : layer.parts + part * weights;
    const OperandOfView<T> rows_from = from.rows(begin, end);
    blas.template multiply<T, Sum>(stream, "encore::network::wgrad", Transpose::yes,
                                   to.rows(begin, end).operand, rows_from.transpose, rows_from.operand,
                                   {result, layer.outputs, layer.inputs, layer.inputs});
  }
  if (parts > 1)
    kernels::bias_backward<Space, Sum, Sum>(
        stream, Matrix<const Sum, Space>(layer.parts, parts, weights),
        Vector<Sum, Space>(gradients + layer.weight, weights),
        Matrix<Sum, Space>(layer.sums_of_parts, kernels::bias_workspace_rows(parts), weights), false);
  kernels::bias_backward<Space, T, Sum>(
      stream, output_gradient, Vector<Sum, Space>(gradients + layer.bias, layer.outputs),
      Matrix<Sum, Space>(layer.sums_of_rows, kernels::bias_workspace_rows(rows), layer.outputs), false);
}

}  // namespace

template <class Space, class T>
MultilayerPerceptron<Space, T>::MultilayerPerceptron(Stream<Space>& stream,
                                                     const NetworkDescription& description) {
  check(description);
  state_ = std::make_unique<State>(stream, description);
  State& s = *state_;
  stream.clear(s.memory.data(), s.memory.bytes(), "network/clear");
  for (std::size_t l = 0; l < s.layers.size(); ++l) {
    const NetworkLayer<T>& layer = s.layers[l];
    const double gain = l + 1 == s.layers.size() ? description.output_gain : 1.0;
    const double deviation = gain * std::sqrt((l == 0 ? 1.0 : 2.0) / static_cast<double>(layer.inputs));
    const std::int64_t weights = layer.inputs * layer.outputs;
    const auto fill = [&](auto* parameters) {
      using P = std::remove_pointer_t<decltype(parameters)>;
      kernels::fill_normal<Space, P>(stream, Vector<P, Space>(parameters + layer.weight, weights), 0.0,
                                     deviation, description.seed, static_cast<std::uint32_t>(l));
    };
    fill(s.parameters);
    if constexpr (State::has_master)
      if (description.trains) fill(s.master);
  }
  set_optimizer(stream, {});
}

template <class Space, class T>
MultilayerPerceptron<Space, T>::~MultilayerPerceptron() = default;

template <class Space, class T>
void MultilayerPerceptron<Space, T>::run_forward(Stream<Space>& stream, Taken inputs, Given outputs) {
  State& s = *state_;
  if (inputs.rows != outputs.rows)
    throw ConfigurationError(
        fmt::format("a network's inputs have {} cells and its outputs {}: give it views of the "
                    "same cells",
                    inputs.rows, outputs.rows));
  Taken from = inputs;
  for (std::size_t l = 0; l < s.layers.size(); ++l) {
    const NetworkLayer<T>& layer = s.layers[l];
    const bool is_last = l + 1 == s.layers.size();
    const Given to = is_last ? outputs : dense(layer.raised, inputs.rows, layer.outputs);
    const OperandOfView<T> operand(from);
    backend::MatrixProductOptions<T> options;
    options.bias = s.parameters + layer.bias;
    s.blas.template multiply<T, T>(
        stream, "encore::network::forward", operand.transpose, operand.operand, Transpose::yes,
        MatrixOperand<const T>{s.parameters + layer.weight, layer.outputs, layer.inputs, layer.inputs},
        MatrixOperand<T>{to.data, to.rows, to.columns, std::max(to.row_stride, to.columns)}, options);
    if (is_last) break;
    activate<Space, T>(stream, s.description.activation,
                       Matrix<const T, Space>(layer.raised, inputs.rows, layer.outputs),
                       Matrix<T, Space>(layer.activated, inputs.rows, layer.outputs));
    from = dense<const T>(layer.activated, inputs.rows, layer.outputs);
  }
  s.saved_inputs = inputs.data;
  s.saved_rows = inputs.rows;
}

template <class Space, class T>
void MultilayerPerceptron<Space, T>::run_train(Stream<Space>& stream, Taken inputs, Taken targets) {
  State& s = *state_;
  const Given own = dense(s.own_outputs, inputs.rows, outputs());
  if (s.description.trains) run_forward(stream, inputs, own);
  run_learn(stream, inputs, own, targets);
}

template <class Space, class T>
void MultilayerPerceptron<Space, T>::run_learn(Stream<Space>& stream, Taken inputs, Taken outputs_of_forward,
                                               Taken targets) {
  State& s = *state_;
  const std::int64_t rows = inputs.rows, columns = outputs();
  if (s.description.trains) {
    if (outputs_of_forward.rows != rows || targets.rows != rows)
      throw ConfigurationError(fmt::format(
          "a network's inputs have {} cells, its outputs {} and its targets {}: give it views of the same "
          "cells",
          rows, outputs_of_forward.rows, targets.rows));
    kernels::mean_squared_error<Space, T>(
        stream, outputs_of_forward, targets, Matrix<T, Space>(s.output_gradient, rows, columns),
        Vector<double, Space>(s.error_partials, kernels::squared_error_partial_count(rows * columns)),
        s.scalars + loss_scalar);
  }
  run_backward(stream, inputs, dense<const T>(s.output_gradient, rows, columns), {});
  update(stream);
}

template <class Space, class T>
void MultilayerPerceptron<Space, T>::run_backward(Stream<Space>& stream, Taken inputs, Taken output_gradient,
                                                  Given input_gradient) {
  State& s = *state_;
  if (!s.description.trains)
    throw ConfigurationError(
        "the network was made for inference alone: make it with trains = true to train it");
  if (s.saved_rows != inputs.rows || s.saved_inputs != inputs.data)
    throw ConfigurationError(
        "a network's backward pass needs the forward pass of the same inputs just before it: call forward() "
        "with "
        "them, once for each backward pass");
  const std::int64_t rows = inputs.rows;
  const bool wants_inputs = input_gradient.data != nullptr;
  if (output_gradient.rows != rows || (wants_inputs && input_gradient.rows != rows) ||
      (rows > 1 && output_gradient.row_stride != output_gradient.columns))
    throw ConfigurationError(
        fmt::format("a network's inputs have {} cells, and so must have the gradients of outputs "
                    "and inputs, the former without gaps between the cells",
                    rows));
  s.saved_rows = 0;
  const T* gradient = output_gradient.data;
  for (std::size_t l = s.layers.size(); l-- > 0;) {
    const NetworkLayer<T>& layer = s.layers[l];
    const Taken input = l == 0 ? inputs : dense<const T>(s.layers[l - 1].activated, rows, layer.inputs);
    const Given result = l == 0 ? input_gradient : dense(s.activated_gradient, rows, layer.inputs);
    if (l > 0 || wants_inputs)
      s.blas.template multiply<T, T>(
          stream, "encore::network::dgrad", Transpose::no, {gradient, rows, layer.outputs, layer.outputs},
          Transpose::no, {s.parameters + layer.weight, layer.outputs, layer.inputs, layer.inputs},
          {result.data, rows, layer.inputs, std::max(result.row_stride, layer.inputs)});
    parameter_gradients<Space, T>(stream, s.blas, layer, input,
                                  Matrix<const T, Space>(gradient, rows, layer.outputs), s.gradients);
    if (l == 0) break;
    T* raised = s.layers[l - 1].raised;
    activate_backward<Space, T>(stream, s.description.activation,
                                Matrix<const T, Space>(s.activated_gradient, rows, layer.inputs),
                                Matrix<T, Space>(raised, rows, layer.inputs));
    gradient = raised;
  }
}

template <class Space, class T>
void MultilayerPerceptron<Space, T>::update(Stream<Space>& stream) {
  State& s = *state_;
  if (!s.description.trains)
    throw ConfigurationError(
        "the network was made for inference alone: make it with trains = true to update it");
  double* const d = s.scalars;
  backend::launch(stream, "network/next_step", {backend::write(d + step_scalar, 1)}, backend::Range{1},
                  NextStep{d + step_scalar});
  const Vector<double, Space> partials(s.norm_partials, kernels::squared_norm_partial_count());
  kernels::squared_norm_partials<Space, Sum>(stream, gradients(), partials);
  const Vector<Sum, Space> factors(s.factors, kernels::adamw_factor_count());
  kernels::adamw_prepare<Space, Sum>(stream, partials,
                                     {d + learning_rate_scalar, d + weight_decay_scalar, d + beta1_scalar,
                                      d + beta2_scalar, d + epsilon_scalar, d + clip_scalar, d + step_scalar,
                                      d + gradient_scale_scalar, d + skip_above_scalar},
                                     d + gradient_norm_scalar, factors);
  kernels::adamw<Space, T, Sum, Sum>(stream, gradients(), factors, parameters(), master(), first_moment(),
                                     second_moment(), s.decayed);
}

template <class Space, class T>
void MultilayerPerceptron<Space, T>::set_optimizer(Stream<Space>& stream, const NetworkOptimizer& optimizer) {
  const auto& o = optimizer;
  const auto require = [](bool good, const char* name, double value, const char* range) {
    if (!good || !std::isfinite(value))
      throw ConfigurationError(fmt::format("a network's {} must be {}, and is {}", name, range, value));
  };
  require(o.learning_rate >= 0, "learning_rate", o.learning_rate, "at least 0");
  require(o.weight_decay >= 0, "weight_decay", o.weight_decay, "at least 0");
  require(o.beta1 >= 0 && o.beta1 < 1, "beta1", o.beta1, "in [0, 1)");
  require(o.beta2 >= 0 && o.beta2 < 1, "beta2", o.beta2, "in [0, 1)");
  require(o.epsilon > 0, "epsilon", o.epsilon, "above 0");
  require(o.clip >= 0, "clip", o.clip, "at least 0");
  require(o.skip_above >= 0, "skip_above", o.skip_above, "at least 0");
  const std::array<double, step_scalar> values{o.learning_rate, o.weight_decay, o.beta1,      o.beta2,
                                               o.epsilon,       o.clip,         o.skip_above, 1.0};
  stream.copy_to_device(state_->scalars, values.data(), sizeof values, "network/optimizer");
}

template <class Space, class T>
double MultilayerPerceptron<Space, T>::loss(Stream<Space>& stream) const {
  double value = 0;
  stream.copy_to_host(&value, state_->scalars + loss_scalar, sizeof value, "network/loss");
  stream.synchronize("network/loss");
  return value;
}

template <class Space, class T>
double MultilayerPerceptron<Space, T>::gradient_norm(Stream<Space>& stream) const {
  double value = 0;
  stream.copy_to_host(&value, state_->scalars + gradient_norm_scalar, sizeof value, "network/gradient_norm");
  stream.synchronize("network/gradient_norm");
  return value;
}

template <class Space, class T>
const NetworkDescription& MultilayerPerceptron<Space, T>::description() const {
  return state_->description;
}
template <class Space, class T>
std::size_t MultilayerPerceptron<Space, T>::bytes() const {
  return state_->memory.bytes();
}
template <class Space, class T>
Vector<double, Space> MultilayerPerceptron<Space, T>::learning_rate() const {
  return Vector<double, Space>(state_->scalars + learning_rate_scalar, 1);
}
template <class Space, class T>
Vector<const double, Space> MultilayerPerceptron<Space, T>::loss() const {
  return Vector<const double, Space>(state_->scalars + loss_scalar, 1);
}
template <class Space, class T>
Vector<T, Space> MultilayerPerceptron<Space, T>::parameters() const {
  return Vector<T, Space>(state_->parameters, state_->size);
}

#define ENCORE_ARRAY(NAME)                                                               \
  template <class Space, class T>                                                        \
  auto MultilayerPerceptron<Space, T>::NAME() const->Vector<Sum, Space> {                \
    return Vector<Sum, Space>(state_->NAME, state_->NAME == nullptr ? 0 : state_->size); \
  }
ENCORE_ARRAY(gradients)
ENCORE_ARRAY(first_moment)
ENCORE_ARRAY(second_moment)
ENCORE_ARRAY(master)
#undef ENCORE_ARRAY

#define ENCORE_INSTANTIATE(SPACE, T) template class MultilayerPerceptron<SPACE, T>;
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
