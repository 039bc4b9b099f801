// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/activation.hpp>

#include "map.hpp"
#include "mathematics.hpp"

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

/// One team a row: the halves of a row are then addressed without a division.
template <int Width, class T>
struct SwigluForward {
  const T* gate_up;
  T* output;
  std::int64_t ffn;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using A = Accumulator<T>;
    const T* gate_row = gate_up + 2 * ffn * team.league_rank();
    const T* up_row = gate_row + ffn;
    T* row = output + ffn * team.league_rank();
    team.for_each(ffn / Width, [&](std::int64_t item) {
      const auto gate = backend::load_packet<Width>(gate_row, item);
      const auto up = backend::load_packet<Width>(up_row, item);
      backend::Packet<T, Width> result;
      for (int i = 0; i < Width; ++i) {
        const A g = static_cast<A>(gate[i]);
        result[i] = static_cast<T>(g * impl::logistic(g) * static_cast<A>(up[i]));
      }
      backend::store_packet(row, item, result);
    });
  }
};

template <int Width, class T>
struct SwigluBackward {
  const T* gate_up;
  const T* output_gradient;
  T* gate_up_gradient;
  std::int64_t ffn;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using A = Accumulator<T>;
    const std::int64_t begin = 2 * ffn * team.league_rank();
    const T* gate_row = gate_up + begin;
    const T* up_row = gate_row + ffn;
    const T* gradient_row = output_gradient + ffn * team.league_rank();
    T* gate_gradient_row = gate_up_gradient + begin;
    T* up_gradient_row = gate_gradient_row + ffn;
    team.for_each(ffn / Width, [&](std::int64_t item) {
      const auto gate = backend::load_packet<Width>(gate_row, item);
      const auto up = backend::load_packet<Width>(up_row, item);
      const auto gradient = backend::load_packet<Width>(gradient_row, item);
      backend::Packet<T, Width> gate_gradient, up_gradient;
      for (int i = 0; i < Width; ++i) {
        const A g = static_cast<A>(gate[i]);
        const A d = static_cast<A>(gradient[i]);
        const A s = impl::logistic(g);
        gate_gradient[i] = static_cast<T>(d * static_cast<A>(up[i]) * s * (1 + g * (1 - s)));
        up_gradient[i] = static_cast<T>(d * g * s);
      }
      backend::store_packet(gate_gradient_row, item, gate_gradient);
      backend::store_packet(up_gradient_row, item, up_gradient);
    });
  }
};

constexpr int row_threads = 256;

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
  const std::int64_t tokens = impl::rows_of(output), ffn = impl::columns_of(output);
  impl::require_shape(impl::is_matrix(output, tokens, ffn) && impl::is_matrix(gate_up, tokens, 2 * ffn),
                      "swiglu_forward: gate_up must be [tokens, 2 ffn] where output is [tokens, ffn]");
  impl::with_packet_width<Space>(
      ffn,
      [&](auto width) {
        launch(stream, "swiglu/forward", {backend::read(gate_up), backend::write(output)},
               backend::Teams<row_threads>{tokens},
               SwigluForward<width, T>{gate_up.data(), output.data(), ffn});
      },
      gate_up.data(), output.data());
}

template <class Space, class T>
void swiglu_backward(Stream<Space>& stream, Matrix<const T, Space> gate_up,
                     Matrix<const T, Space> output_gradient, Matrix<T, Space> gate_up_gradient) {
  const std::int64_t tokens = impl::rows_of(output_gradient), ffn = impl::columns_of(output_gradient);
  impl::require_shape(impl::is_matrix(output_gradient, tokens, ffn) &&
                          impl::is_matrix(gate_up, tokens, 2 * ffn) &&
                          impl::is_matrix(gate_up_gradient, tokens, 2 * ffn),
                      "swiglu_backward: gate_up and its gradient must be [tokens, 2 ffn] where "
                      "output_gradient is [tokens, ffn]");
  impl::with_packet_width<Space>(
      ffn,
      [&](auto width) {
        launch(
            stream, "swiglu/backward",
            {backend::read(gate_up), backend::read(output_gradient), backend::write(gate_up_gradient)},
            backend::Teams<row_threads>{tokens},
            SwigluBackward<width, T>{gate_up.data(), output_gradient.data(), gate_up_gradient.data(), ffn});
      },
      gate_up.data(), output_gradient.data(), gate_up_gradient.data());
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                      \
  template void gelu_forward<SPACE, T>(Stream<SPACE>&, Gelu, Matrix<const T, SPACE>, Matrix<T, SPACE>);   \
  template void gelu_backward<SPACE, T>(Stream<SPACE>&, Gelu, Matrix<const T, SPACE>,                     \
                                        Matrix<const T, SPACE>, Matrix<T, SPACE>);                        \
  template void swiglu_forward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<T, SPACE>);       \
  template void swiglu_backward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<const T, SPACE>, \
                                          Matrix<T, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
