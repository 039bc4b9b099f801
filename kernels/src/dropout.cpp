// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/dropout.hpp>

#include "random_items.hpp"

namespace encore::kernels {

namespace {

template <int Elements, int Width, bool Residual, class T>
struct Dropout {
  const T* input;
  const T* residual;
  T* output;
  std::int64_t size;
  const double* probability;
  const backend::RandomState* state;
  std::uint32_t segment;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    using A = Accumulator<T>;
    const double p = *probability;
    // A uniform number has 24 bits, so uniform >= p is the same as this comparison of integers.
    const auto threshold = static_cast<std::uint32_t>(Kokkos::ceil(p * 16777216.0));
    const A scale = p < 1 ? static_cast<A>(1 / (1 - p)) : A(0);
    const std::int64_t begin = item * Elements;
    const bool whole = begin + Elements <= size;
    std::uint32_t words[Elements];
    impl::draw_words(state, segment, begin, words);
    if constexpr (Width > 1) {
      if (whole) {
        for (int k = 0; k < Elements / Width; ++k)
          do_packet(begin / Width + k, words + k * Width, threshold, scale);
        return;
      }
    }
    const int count = whole ? Elements : static_cast<int>(size - begin);
    const T* in = input + begin;
    const T* add = Residual ? residual + begin : nullptr;
    T* out = output + begin;
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) {
      const A scaled = static_cast<A>(in[i]) * scale;
      A result = (words[i] >> 8) >= threshold ? scaled : A(0);
      if constexpr (Residual) result += static_cast<A>(add[i]);
      out[i] = static_cast<T>(result);
    }
  }

 private:
  template <class A>
  KOKKOS_FUNCTION void do_packet(std::int64_t packet, const std::uint32_t* words, std::uint32_t threshold,
                                 A scale) const {
    const auto in = backend::load_packet<Width>(input, packet);
    backend::Packet<T, Width> add = {}, out;
    if constexpr (Residual) add = backend::load_packet<Width>(residual, packet);
    for (int i = 0; i < Width; ++i) {
      const A scaled = static_cast<A>(in[i]) * scale;
      out[i] = static_cast<T>(((words[i] >> 8) >= threshold ? scaled : A(0)) + static_cast<A>(add[i]));
    }
    backend::store_packet(output, packet, out);
  }
};

template <bool Residual, class Space, class T>
void launch_dropout(Stream<Space>& stream, const char* label, std::int64_t size, const T* input,
                    const T* residual, T* output, const double* probability,
                    const backend::RandomState* state, std::uint32_t segment) {
  impl::with_packet_width<Space>(
      0,  // The last packet may be partial.
      [&](auto width) {
        constexpr int elements = impl::random_item_elements<Space, width>;
        launch(stream, label,
               {backend::read(input, size), backend::read(residual, Residual ? size : 0),
                backend::read(probability, 1), backend::read(state, 1), backend::write(output, size)},
               backend::Range{impl::rounded_up_quotient(size, elements)},
               Dropout<elements, width, Residual, T>{input, residual, output, size, probability, state,
                                                     segment});
      },
      input, residual, output);
}

}  // namespace

template <class Space, class T>
void dropout_forward(Stream<Space>& stream, Matrix<const T, Space> input, Matrix<const T, Space> residual,
                     Matrix<T, Space> output, const double* probability, const backend::RandomState* state,
                     std::uint32_t segment) {
  const std::int64_t rows = impl::rows_of(input), columns = impl::columns_of(input);
  impl::require_shape(impl::is_matrix(input, rows, columns) && impl::is_matrix(output, rows, columns) &&
                          (impl::is_empty(residual) || impl::is_matrix(residual, rows, columns)),
                      "dropout_forward: input, residual and output must have the same shape");
  if (impl::is_empty(residual)) {
    launch_dropout<false>(stream, "dropout/forward", rows * columns, input.data(), residual.data(),
                          output.data(), probability, state, segment);
  } else {
    launch_dropout<true>(stream, "dropout/forward", rows * columns, input.data(), residual.data(),
                         output.data(), probability, state, segment);
  }
}

template <class Space, class T>
void dropout_backward(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                      Matrix<T, Space> input_gradient, const double* probability,
                      const backend::RandomState* state, std::uint32_t segment) {
  const std::int64_t rows = impl::rows_of(output_gradient), columns = impl::columns_of(output_gradient);
  impl::require_shape(
      impl::is_matrix(output_gradient, rows, columns) && impl::is_matrix(input_gradient, rows, columns),
      "dropout_backward: the two gradients must have the same shape");
  launch_dropout<false>(stream, "dropout/backward", rows * columns, output_gradient.data(),
                        static_cast<const T*>(nullptr), input_gradient.data(), probability, state, segment);
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                      \
  template void dropout_forward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<const T, SPACE>, \
                                          Matrix<T, SPACE>, const double*, const backend::RandomState*,   \
                                          std::uint32_t);                                                 \
  template void dropout_backward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<T, SPACE>,      \
                                           const double*, const backend::RandomState*, std::uint32_t);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
