// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/blas.hpp>
#include <encore/backend/memory.hpp>
#include <encore/kernels/bias.hpp>
#include <encore/kernels/optimizer.hpp>
#include <encore/kernels/squared_error.hpp>
#include <encore/model/multilayer_perceptron.hpp>

#include <algorithm>
#include <vector>

namespace encore::model {

/// Places of a network's scalars in device memory. Those before `step` are the optimizer's settings.
enum NetworkScalar {
  learning_rate_scalar,
  weight_decay_scalar,
  beta1_scalar,
  beta2_scalar,
  epsilon_scalar,
  clip_scalar,
  skip_above_scalar,
  gradient_scale_scalar,
  step_scalar,
  loss_scalar,
  gradient_norm_scalar,
  network_scalar_count
};

/// Of `rows` cells hosts form a weight gradient in so many parts: a product over all cells has a single tile, and would
/// occupy a single thread. A GPU's library splits by itself.
template <class Space>
std::int64_t weight_gradient_parts(std::int64_t rows) {
  if (!backend::is_host_space<Space>) return 1;
  constexpr std::int64_t rows_of_part = 1024, most = 32;
  return std::clamp<std::int64_t>(rows / rows_of_part, 1, most);
}

/// Hands out memory from an address on; from nullptr on it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <class T>
  T* take(std::int64_t count) {
    constexpr std::size_t alignment = 256;
    const std::size_t begin = (bytes_ + alignment - 1) / alignment * alignment;
    bytes_ = begin + static_cast<std::size_t>(count) * sizeof(T);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + begin);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

/// One layer's arrays. Empty ones are nullptr.
template <class T>
struct NetworkLayer {
  using Sum = backend::Accumulator<T>;

  std::int64_t inputs, outputs;
  std::int64_t weight, bias;  ///< first elements among the parameters
  T* raised;           ///< [rows, outputs] of a hidden layer: before the activation, later its gradient
  T* activated;        ///< [rows, outputs] of a hidden layer: after it
  Sum* parts;          ///< [weight_gradient_parts, weights], where there are several
  Sum* sums_of_parts;  ///< workspace of adding them up
  Sum* sums_of_rows;   ///< workspace of the bias' gradient
};

template <class Space, class T>
struct MultilayerPerceptron<Space, T>::State {
  static constexpr bool has_master = !std::is_same_v<T, Sum>;

  State(backend::Stream<Space>& stream, const NetworkDescription& what) : description(what), blas(stream) {
    std::int64_t at = 0;
    const auto place = [&](std::int64_t elements) {
      constexpr std::int64_t alignment = 16;
      const std::int64_t begin = at;
      at = (at + elements + alignment - 1) / alignment * alignment;
      return begin;
    };
    const auto& widths = description.widths;
    for (std::size_t l = 0; l + 1 < widths.size(); ++l)
      layers.push_back({widths[l], widths[l + 1], place(widths[l] * widths[l + 1]), 0, {}, {}, {}, {}, {}});
    decayed = at;
    for (auto& layer : layers) layer.bias = place(layer.outputs);
    size = at;
    Carver counter(nullptr);
    lay_out(counter);
    memory = backend::Allocation<Space>("network", counter.bytes());
    Carver carver(memory.data());
    lay_out(carver);
  }

  void lay_out(Carver& carver) {
    const std::int64_t rows = description.rows;
    const auto& widths = description.widths;
    const std::int64_t hidden =
        widths.size() == 2 ? 0 : *std::max_element(widths.begin() + 1, widths.end() - 1);
    parameters = carver.take<T>(size);
    scalars = carver.take<double>(network_scalar_count);
    if (!description.trains) {
      // The activation is applied in place, and layers take turns.
      T* const turns[2] = {carver.take<T>(rows * hidden), carver.take<T>(rows * hidden)};
      for (std::size_t l = 0; l + 1 < layers.size(); ++l)
        layers[l].raised = layers[l].activated = turns[l % 2];
      return;
    }
    gradients = carver.take<Sum>(size);
    first_moment = carver.take<Sum>(size);
    second_moment = carver.take<Sum>(size);
    master = has_master ? carver.take<Sum>(size) : nullptr;
    factors = carver.take<Sum>(kernels::adamw_factor_count());
    norm_partials = carver.take<double>(kernels::squared_norm_partial_count());
    error_partials = carver.take<double>(kernels::squared_error_partial_count(rows * widths.back()));
    own_outputs = carver.take<T>(rows * widths.back());
    output_gradient = carver.take<T>(rows * widths.back());
    activated_gradient = carver.take<T>(rows * hidden);
    const std::int64_t parts = weight_gradient_parts<Space>(rows);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      NetworkLayer<T>& layer = layers[l];
      const bool is_hidden = l + 1 < layers.size();
      layer.raised = is_hidden ? carver.take<T>(rows * layer.outputs) : nullptr;
      layer.activated = is_hidden ? carver.take<T>(rows * layer.outputs) : nullptr;
      const std::int64_t weights = layer.inputs * layer.outputs;
      layer.parts = parts > 1 ? carver.take<Sum>(parts * weights) : nullptr;
      layer.sums_of_parts =
          parts > 1 ? carver.take<Sum>(kernels::bias_workspace_rows(parts) * weights) : nullptr;
      layer.sums_of_rows = carver.take<Sum>(kernels::bias_workspace_rows(rows) * layer.outputs);
    }
  }

  NetworkDescription description;
  backend::Blas<Space> blas;
  std::vector<NetworkLayer<T>> layers;
  std::int64_t size = 0, decayed = 0;
  backend::Allocation<Space> memory;

  T* parameters = nullptr;
  double* scalars = nullptr;
  Sum* gradients = nullptr;
  Sum* first_moment = nullptr;
  Sum* second_moment = nullptr;
  Sum* master = nullptr;
  Sum* factors = nullptr;
  double* norm_partials = nullptr;
  double* error_partials = nullptr;
  T* own_outputs = nullptr;
  T* output_gradient = nullptr;
  T* activated_gradient = nullptr;

  /// What the activations at hand were computed from; no rows: they have been used up.
  const T* saved_inputs = nullptr;
  std::int64_t saved_rows = 0;
};

}  // namespace encore::model
