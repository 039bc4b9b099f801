// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/activation.hpp>

#include "activation_formulas.hpp"
#include "filling_width.hpp"
#include "map.hpp"
#include "row_packets.hpp"

namespace encore::kernels {

namespace {

/// (1 + tanh(u)) / 2 = logistic(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class A>
KOKKOS_INLINE_FUNCTION A tanh_gate(A x) {
  constexpr A twice_root = A(1.5957691216057308);
  return impl::logistic(twice_root * (x + A(0.044715) * x * x * x));
}

template <class A>
KOKKOS_INLINE_FUNCTION A normal_distribution(A x) {
  return A(0.5) * (1 + impl::error_function(x * A(0.70710678118654752)));
}

template <Gelu Kind>
struct GeluForward {
  template <class A>
  KOKKOS_FUNCTION A operator()(A x) const {
    return x * (Kind == Gelu::tanh ? tanh_gate(x) : normal_distribution(x));
  }
};

template <Gelu Kind>
struct GeluBackward {
  template <class A>
  KOKKOS_FUNCTION A operator()(A x, A gradient) const {
    if constexpr (Kind == Gelu::tanh) {
      const A gate = tanh_gate(x);
      const A slope = A(1.5957691216057308) * (1 + A(3 * 0.044715) * x * x);
      return gradient * (gate + x * gate * (1 - gate) * slope);
    } else {
      const A density = A(0.39894228040143268) * impl::exponential(A(-0.5) * x * x);
      return gradient * (normal_distribution(x) + x * density);
    }
  }
};

template <int Width, class Formula, class T>
struct GatedForward {
  Formula formula;
  const T* gate_up;
  T* output;
  std::int64_t ffn;

  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t packet) const {
    using A = Accumulator<T>;
    const T* gate_row = gate_up + 2 * ffn * row;
    const auto gate = backend::load_packet<Width>(gate_row, packet);
    const auto up = backend::load_packet<Width>(gate_row + ffn, packet);
    backend::Packet<T, Width> result;
    for (int i = 0; i < Width; ++i)
      result[i] = static_cast<T>(formula.value(static_cast<A>(gate[i]), static_cast<A>(up[i])));
    backend::store_packet(output + ffn * row, packet, result);
  }
};

template <int Width, class Formula, class T>
struct GatedBackward {
  Formula formula;
  const T* gate_up;
  const T* output_gradient;
  T* gate_up_gradient;
  std::int64_t ffn;

  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t packet) const {
    using A = Accumulator<T>;
    const T* gate_row = gate_up + 2 * ffn * row;
    const auto gate = backend::load_packet<Width>(gate_row, packet);
    const auto up = backend::load_packet<Width>(gate_row + ffn, packet);
    const auto gradient = backend::load_packet<Width>(output_gradient + ffn * row, packet);
    backend::Packet<T, Width> gate_gradient, up_gradient;
    for (int i = 0; i < Width; ++i) {
      const auto slopes = formula.slopes(static_cast<A>(gate[i]), static_cast<A>(up[i]));
      const A d = static_cast<A>(gradient[i]);
      gate_gradient[i] = static_cast<T>(d * slopes.gate);
      up_gradient[i] = static_cast<T>(d * slopes.up);
    }
    T* gate_gradient_row = gate_up_gradient + 2 * ffn * row;
    backend::store_packet(gate_gradient_row, packet, gate_gradient);
    backend::store_packet(gate_gradient_row + ffn, packet, up_gradient);
  }
};

template <class A>
struct ReluSquaredForward {
  KOKKOS_FUNCTION A operator()(A x) const { return impl::ReluSquared<A>{}.value(x); }
};
template <class A>
struct ReluSquaredBackward {
  KOKKOS_FUNCTION A operator()(A x, A gradient) const { return gradient * impl::ReluSquared<A>{}.slope(x); }
};

template <class T>
impl::SwigluClamped<Accumulator<T>> clamped_formula(double limit) {
  impl::require_shape(limit > 0, "swiglu_clamped: the limit must be above 0");
  return {static_cast<Accumulator<T>>(limit)};
}

template <class Space, class T, class Formula>
void launch_gated_forward(Stream<Space>& stream, const char* label, const Formula& formula,
                          Matrix<const T, Space> gate_up, Matrix<T, Space> output) {
  const std::int64_t tokens = impl::rows_of(output), ffn = impl::columns_of(output);
  impl::require_shape(impl::is_matrix(output, tokens, ffn) && impl::is_matrix(gate_up, tokens, 2 * ffn),
                      "a gated activation: gate_up must be [tokens, 2 ffn] where output is [tokens, ffn]");
  impl::with_filling_width<Space, backend::packet_width<T>>(
      tokens, ffn,
      [&](auto width) {
        impl::launch_row_packets(
            stream, label, {backend::read(gate_up), backend::write(output)}, tokens, ffn / width,
            GatedForward<width, Formula, T>{formula, gate_up.data(), output.data(), ffn});
      },
      gate_up.data(), output.data());
}

template <class Space, class T, class Formula>
void launch_gated_backward(Stream<Space>& stream, const char* label, const Formula& formula,
                           Matrix<const T, Space> gate_up, Matrix<const T, Space> output_gradient,
                           Matrix<T, Space> gate_up_gradient) {
  const std::int64_t tokens = impl::rows_of(output_gradient), ffn = impl::columns_of(output_gradient);
  impl::require_shape(impl::is_matrix(output_gradient, tokens, ffn) &&
                          impl::is_matrix(gate_up, tokens, 2 * ffn) &&
                          impl::is_matrix(gate_up_gradient, tokens, 2 * ffn),
                      "a gated activation's backward: gate_up and its gradient must be [tokens, 2 ffn] where "
                      "output_gradient is [tokens, ffn]");
  impl::with_filling_width<Space, backend::packet_width<T>>(
      tokens, ffn,
      [&](auto width) {
        impl::launch_row_packets(
            stream, label,
            {backend::read(gate_up), backend::read(output_gradient), backend::write(gate_up_gradient)},
            tokens, ffn / width,
            GatedBackward<width, Formula, T>{formula, gate_up.data(), output_gradient.data(),
                                             gate_up_gradient.data(), ffn});
      },
      gate_up.data(), output_gradient.data(), gate_up_gradient.data());
}

}  // namespace

template <class Space, class T>
void gelu_forward(Stream<Space>& stream, Gelu kind, Matrix<const T, Space> input, Matrix<T, Space> output) {
  const std::int64_t rows = impl::rows_of(input), columns = impl::columns_of(input);
  impl::require_shape(impl::is_matrix(input, rows, columns) && impl::is_matrix(output, rows, columns),
                      "gelu_forward: input and output must have the same shape");
  const auto launch = [&](auto operation) {
    impl::launch_map(stream, "gelu/forward", operation, rows * columns, output.data(), input.data());
  };
  if (kind == Gelu::tanh)
    launch(GeluForward<Gelu::tanh>{});
  else
    launch(GeluForward<Gelu::exact>{});
}

template <class Space, class T>
void gelu_backward(Stream<Space>& stream, Gelu kind, Matrix<const T, Space> input,
                   Matrix<const T, Space> output_gradient, Matrix<T, Space> input_gradient) {
  const std::int64_t rows = impl::rows_of(input), columns = impl::columns_of(input);
  impl::require_shape(impl::is_matrix(input, rows, columns) &&
                          impl::is_matrix(output_gradient, rows, columns) &&
                          impl::is_matrix(input_gradient, rows, columns),
                      "gelu_backward: input and gradients must have the same shape");
  const auto launch = [&](auto operation) {
    impl::launch_map(stream, "gelu/backward", operation, rows * columns, input_gradient.data(), input.data(),
                     output_gradient.data());
  };
  if (kind == Gelu::tanh)
    launch(GeluBackward<Gelu::tanh>{});
  else
    launch(GeluBackward<Gelu::exact>{});
}

template <class Space, class T>
void swiglu_forward(Stream<Space>& stream, Matrix<const T, Space> gate_up, Matrix<T, Space> output) {
  launch_gated_forward<Space, T>(stream, "swiglu/forward", impl::Swiglu<Accumulator<T>>{}, gate_up, output);
}

template <class Space, class T>
void swiglu_backward(Stream<Space>& stream, Matrix<const T, Space> gate_up,
                     Matrix<const T, Space> output_gradient, Matrix<T, Space> gate_up_gradient) {
  launch_gated_backward<Space, T>(stream, "swiglu/backward", impl::Swiglu<Accumulator<T>>{}, gate_up,
                                  output_gradient, gate_up_gradient);
}

template <class Space, class T>
void swiglu_clamped_forward(Stream<Space>& stream, double limit, Matrix<const T, Space> gate_up,
                            Matrix<T, Space> output) {
  launch_gated_forward<Space, T>(stream, "swiglu_clamped/forward", clamped_formula<T>(limit), gate_up,
                                 output);
}

template <class Space, class T>
void swiglu_clamped_backward(Stream<Space>& stream, double limit, Matrix<const T, Space> gate_up,
                             Matrix<const T, Space> output_gradient, Matrix<T, Space> gate_up_gradient) {
  launch_gated_backward<Space, T>(stream, "swiglu_clamped/backward", clamped_formula<T>(limit), gate_up,
                                  output_gradient, gate_up_gradient);
}

template <class Space, class T>
void relu_squared_forward(Stream<Space>& stream, Matrix<const T, Space> input, Matrix<T, Space> output) {
  const std::int64_t rows = impl::rows_of(input), columns = impl::columns_of(input);
  impl::require_shape(impl::is_matrix(input, rows, columns) && impl::is_matrix(output, rows, columns),
                      "relu_squared_forward: input and output must have the same shape");
  impl::launch_map(stream, "relu_squared/forward", ReluSquaredForward<Accumulator<T>>{}, rows * columns,
                   output.data(), input.data());
}

template <class Space, class T>
void relu_squared_backward(Stream<Space>& stream, Matrix<const T, Space> input,
                           Matrix<const T, Space> output_gradient, Matrix<T, Space> input_gradient) {
  const std::int64_t rows = impl::rows_of(input), columns = impl::columns_of(input);
  impl::require_shape(impl::is_matrix(input, rows, columns) &&
                          impl::is_matrix(output_gradient, rows, columns) &&
                          impl::is_matrix(input_gradient, rows, columns),
                      "relu_squared_backward: input and gradients must have the same shape");
  impl::launch_map(stream, "relu_squared/backward", ReluSquaredBackward<Accumulator<T>>{}, rows * columns,
                   input_gradient.data(), input.data(), output_gradient.data());
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                      \
  template void gelu_forward<SPACE, T>(Stream<SPACE>&, Gelu, Matrix<const T, SPACE>, Matrix<T, SPACE>);   \
  template void gelu_backward<SPACE, T>(Stream<SPACE>&, Gelu, Matrix<const T, SPACE>,                     \
                                        Matrix<const T, SPACE>, Matrix<T, SPACE>);                        \
  template void swiglu_forward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<T, SPACE>);       \
  template void swiglu_backward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<const T, SPACE>, \
                                          Matrix<T, SPACE>);                                              \
  template void swiglu_clamped_forward<SPACE, T>(Stream<SPACE>&, double, Matrix<const T, SPACE>,          \
                                                 Matrix<T, SPACE>);                                       \
  template void swiglu_clamped_backward<SPACE, T>(Stream<SPACE>&, double, Matrix<const T, SPACE>,         \
                                                  Matrix<const T, SPACE>, Matrix<T, SPACE>);              \
  template void relu_squared_forward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<T, SPACE>); \
  template void relu_squared_backward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>,                   \
                                                Matrix<const T, SPACE>, Matrix<T, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
