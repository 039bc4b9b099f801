// SPDX-License-Identifier: Apache-2.0
#include "causal_convolution_operands.hpp"

namespace encore::kernels {

namespace {

/// An item is a run of tokens of a strip of channels, whose last inputs stay in registers.
template <int Taps, int Width, bool Whole, class T>
struct ConvolutionForward {
  using A = Accumulator<T>;
  static constexpr int run = 16;

  Columns<const T> input;
  const T* weight;
  const T* bias;
  Columns<T> output;
  impl::TapCount<Taps> taps;
  std::int64_t tokens, runs, strips;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t whole_run = impl::quotient(item, strips);
    const std::int64_t channel = (item - whole_run * strips) * Width;
    const std::int64_t sequence = impl::quotient(whole_run, runs);
    const std::int64_t begin = (whole_run - sequence * runs) * run;
    impl::ChannelStrip<Width, Whole, T> strip;
    if constexpr (!Whole)
      strip.count = input.columns - channel < Width ? static_cast<int>(input.columns - channel) : Width;
    const impl::ConvolutionWeights<Taps, Width, Whole, T> weights(taps, strip, weight, bias, channel);
    const T* from = input.data + (sequence * tokens + begin) * input.stride + channel;
    T* to = output.data + (sequence * tokens + begin) * output.stride + channel;
    A window[Taps][Width] = {};
    for (int k = 1; k < Taps; ++k)
      if (begin + k >= Taps) strip.load(from + (k - Taps) * input.stride, window[k]);
    const std::int64_t left = tokens - begin;
    const int count = left < run ? static_cast<int>(left) : run;
    for (int t = 0; t < count; ++t) {
      impl::shift<Taps, Width>(window);
      strip.load(from + t * input.stride, window[Taps - 1]);
      A sums[Width];
      weights.sum(window, sums);
      for (int i = 0; i < Width; ++i) sums[i] *= impl::logistic(sums[i]);
      strip.store(to + t * output.stride, sums);
    }
  }
};

}  // namespace

template <class Space, class T>
void causal_convolution_forward(Stream<Space>& stream, std::int64_t sequences, Columns<const T> input,
                                Matrix<const T, Space> weight, Vector<const T, Space> bias,
                                Columns<T> output) {
  const std::int64_t channels = impl::rows_of(weight), taps = impl::columns_of(weight);
  impl::require_shape(taps >= impl::least_taps && taps <= impl::most_taps,
                      "causal_convolution_forward: the width must be 2 to 8");
  impl::require_shape(sequences > 0 && input.rows % sequences == 0 && output.rows == input.rows &&
                          input.columns == channels && output.columns == channels &&
                          impl::is_matrix(weight, channels, taps) &&
                          (impl::is_empty(bias) || impl::is_vector(bias, channels)),
                      "causal_convolution_forward: input and output must be [sequences * tokens, channels], "
                      "weight [channels, "
                      "width] and bias [channels]");
  const std::int64_t tokens = input.rows / sequences;
  const Columns<const T> weights{weight.data(), channels, taps, 0}, biases{bias.data(), 1, channels, 0};
  impl::with_taps(taps, [&]<int Taps>(impl::TapCount<Taps> count) {
    impl::with_strips<Space, backend::packet_width<T>>(
        channels,
        [&](auto width, auto whole) {
          using Functor = ConvolutionForward<Taps, width, whole, T>;
          const std::int64_t runs = impl::rounded_up_quotient(tokens, Functor::run);
          const std::int64_t strips = impl::rounded_up_quotient(channels, width);
          launch(stream, "causal_convolution/forward",
                 {impl::read(input), backend::read(weight), backend::read(bias), impl::write(output)},
                 backend::Range{sequences * runs * strips},
                 Functor{input, weight.data(), bias.data(), output, count, tokens, runs, strips});
        },
        input, output, weights, biases);
  });
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                 \
  template void causal_convolution_forward<SPACE, T>(Stream<SPACE>&, std::int64_t, Columns<const T>, \
                                                     Matrix<const T, SPACE>, Vector<const T, SPACE>, \
                                                     Columns<T>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
