// SPDX-License-Identifier: Apache-2.0
#include "causal_convolution_operands.hpp"
#include "column_sum.hpp"

namespace encore::kernels {

namespace {

/// Tokens of a sequence whose weight gradients are summed before they go to the workspace.
constexpr std::int64_t share_tokens = 128;

/// A team takes a share of the tokens of `strips` neighbouring strips. On a GPU 8 threads share the tokens of a strip
/// and add up what they have; a host thread takes one strip.
template <int Taps, int Width, bool Whole, class T>
struct ConvolutionBackward {
  using A = Accumulator<T>;
  static constexpr int threads = 256;
  static constexpr int strips = Whole ? 32 : 1;
  static constexpr int lanes = Whole ? threads / strips : 1;
  static constexpr int run = static_cast<int>(share_tokens) / lanes;
  static constexpr std::size_t scratch_bytes = Whole ? (Taps + 1) * Width * threads * sizeof(A) : 0;
  using Strip = impl::ChannelStrip<Width, Whole, T>;

  Columns<const T> input;
  const T* weight;
  const T* bias;
  Columns<const T> output_gradient;
  Columns<T> input_gradient;
  A* weight_partials;  ///< [shares, channels, Taps]
  A* bias_partials;    ///< [shares, channels]
  impl::TapCount<Taps> taps;
  std::int64_t tokens, shares, blocks;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t share = impl::quotient(team.league_rank(), blocks);
    const std::int64_t block = team.league_rank() - share * blocks;
    const std::int64_t sequence = impl::quotient(share, shares);
    const std::int64_t share_begin = (share - sequence * shares) * share_tokens;
    const int x = team.rank() % strips, lane = team.rank() / strips;
    const std::int64_t channel = (block * strips + x) * Width;
    Sums sums{};
    if (channel < input.columns) {
      Strip strip;
      if constexpr (!Whole)
        strip.count = input.columns - channel < Width ? static_cast<int>(input.columns - channel) : Width;
      walk(strip, sequence * tokens, share_begin + lane * run, channel, sums);
      if constexpr (!Whole) {
        for (int i = 0; i < strip.count; ++i) {
          const std::int64_t width = taps.width();
          for (std::int64_t k = 0; k < width; ++k)
            weight_partials[(share * input.columns + channel + i) * width + k] =
                sums.value[Taps - width + k][i];
          bias_partials[share * input.columns + channel + i] = sums.value[Taps][i];
        }
      }
    }
    if constexpr (Whole) join(team, share, block * strips * Width, sums);
  }

 private:
  struct Sums {
    A value[Taps + 1][Width];  ///< the last is the bias'
  };

  KOKKOS_FUNCTION void walk(const Strip& strip, std::int64_t sequence_row, std::int64_t begin,
                            std::int64_t channel, Sums& sums) const {
    if (begin >= tokens) return;
    const impl::ConvolutionWeights<Taps, Width, Whole, T> weights(taps, strip, weight, bias, channel);
    const T* from = input.data + (sequence_row + begin) * input.stride + channel;
    const T* gradient = output_gradient.data + (sequence_row + begin) * output_gradient.stride + channel;
    T* to = input_gradient.data + (sequence_row + begin) * input_gradient.stride + channel;
    A window[Taps][Width] = {}, gradients[Taps][Width] = {};
    for (int k = 1; k < Taps; ++k)
      if (begin + k >= Taps) strip.load(from + (k - Taps) * input.stride, window[k]);
    const std::int64_t left = tokens - begin;
    const int count = left < run ? static_cast<int>(left) : run;
    const int inputs = left < run + Taps - 1 ? static_cast<int>(left) : run + Taps - 1;
    A next_input[Width], next_gradient[Width];
    strip.load(from, next_input);
    strip.load(gradient, next_gradient);
    // Gradients of tokens past the run take part in those of its last inputs.
    for (int t = 0; t < count + Taps - 1; ++t) {
      impl::shift<Taps, Width>(window);
      impl::shift<Taps, Width>(gradients);
      for (int i = 0; i < Width; ++i) {
        window[Taps - 1][i] = next_input[i];
        gradients[Taps - 1][i] = next_gradient[i];
      }
      if (t + 1 < inputs) {
        strip.load(from + (t + 1) * input.stride, next_input);
        strip.load(gradient + (t + 1) * output_gradient.stride, next_gradient);
      }
      if (t < inputs) {
        A sum[Width];
        weights.sum(window, sum);
        for (int i = 0; i < Width; ++i) {
          const A gate = impl::logistic(sum[i]);
          gradients[Taps - 1][i] *= gate * (1 + sum[i] * (1 - gate));
        }
      } else {
        for (int i = 0; i < Width; ++i) gradients[Taps - 1][i] = 0;
      }
      if (t < count) {
        for (int k = 0; k < Taps; ++k)
          if (taps.has(k))
            for (int i = 0; i < Width; ++i) sums.value[k][i] += gradients[Taps - 1][i] * window[k][i];
        for (int i = 0; i < Width; ++i) sums.value[Taps][i] += gradients[Taps - 1][i];
      }
      if (t < Taps - 1) continue;
      A result[Width] = {};
      for (int k = 0; k < Taps; ++k)
        if (taps.has(k))
          for (int i = 0; i < Width; ++i) result[i] += weights.weight[k][i] * gradients[Taps - 1 - k][i];
      strip.store(to + (t - (Taps - 1)) * input_gradient.stride, result);
    }
  }

  template <class Team>
  KOKKOS_FUNCTION void join(const Team& team, std::int64_t share, std::int64_t first_channel,
                            const Sums& sums) const {
    A* parts = team.template scratch<A>();
    for (int k = 0; k <= Taps; ++k)
      for (int i = 0; i < Width; ++i) parts[(k * Width + i) * threads + team.rank()] = sums.value[k][i];
    team.barrier();
    // Neighbouring threads have neighbouring places of the result.
    const int width = static_cast<int>(taps.width());
    for (int item = team.rank(); item < (width + 1) * Width * strips; item += threads) {
      const bool of_weight = item < width * Width * strips;
      const int place = of_weight ? item / width : item - width * Width * strips;
      const int k = of_weight ? item - place * width : width;
      if (first_channel + place >= input.columns) continue;
      const A* part = parts + ((Taps - width + k) * Width + place % Width) * threads + place / Width;
      A total(0);
      for (int lane = 0; lane < lanes; ++lane) total += part[lane * strips];
      if (of_weight)
        weight_partials[(share * input.columns + first_channel + place) * width + k] = total;
      else
        bias_partials[share * input.columns + first_channel + place] = total;
    }
  }
};

}  // namespace

std::int64_t causal_convolution_workspace_rows(std::int64_t sequences, std::int64_t tokens_of_sequence) {
  return sequences * impl::rounded_up_quotient(tokens_of_sequence, share_tokens);
}

template <class Space, class T, class G>
void causal_convolution_backward(Stream<Space>& stream, std::int64_t sequences, Columns<const T> input,
                                 Matrix<const T, Space> weight, Vector<const T, Space> bias,
                                 Columns<const T> output_gradient, Columns<T> input_gradient,
                                 Matrix<G, Space> weight_gradient, Vector<G, Space> bias_gradient,
                                 Matrix<Accumulator<T>, Space> workspace, bool accumulate) {
  using A = Accumulator<T>;
  const std::int64_t channels = impl::rows_of(weight), taps = impl::columns_of(weight);
  impl::require_shape(taps >= impl::least_taps && taps <= impl::most_taps,
                      "causal_convolution_backward: the width must be 2 to 8");
  const auto fits = [&](const auto& columns) {
    return columns.rows == input.rows && columns.columns == channels;
  };
  impl::require_shape(sequences > 0 && input.rows % sequences == 0 && fits(input) && fits(output_gradient) &&
                          fits(input_gradient) && impl::is_matrix(weight, channels, taps) &&
                          impl::is_matrix(weight_gradient, channels, taps) &&
                          (impl::is_empty(bias) || impl::is_vector(bias, channels)) &&
                          (impl::is_empty(bias_gradient) || impl::is_vector(bias_gradient, channels)),
                      "causal_convolution_backward: input and its gradients must be [sequences * tokens, "
                      "channels], weight and "
                      "its gradient [channels, width], bias and its gradient [channels]");
  const std::int64_t tokens = input.rows / sequences;
  const std::int64_t rows = causal_convolution_workspace_rows(sequences, tokens);
  impl::require_shape(impl::has_rows(workspace, rows, channels * (taps + 1)),
                      "causal_convolution_backward: the workspace must be "
                      "[causal_convolution_workspace_rows(sequences, tokens), channels * (width + 1)]");
  A* bias_partials = workspace.data() + rows * channels * taps;
  const Columns<const T> weights{weight.data(), channels, taps, 0}, biases{bias.data(), 1, channels, 0};
  impl::with_taps(taps, [&]<int Taps>(impl::TapCount<Taps> count) {
    impl::with_strips<Space, 4>(
        channels,
        [&](auto width, auto whole) {
          using Functor = ConvolutionBackward<Taps, width, whole, T>;
          const std::int64_t blocks = impl::rounded_up_quotient(channels, width * Functor::strips);
          launch(stream, "causal_convolution/backward",
                 {impl::read(input), backend::read(weight), backend::read(bias), impl::read(output_gradient),
                  impl::write(input_gradient), backend::write(workspace)},
                 backend::Teams<Functor::threads>{rows * blocks, Functor::scratch_bytes},
                 Functor{input, weight.data(), bias.data(), output_gradient, input_gradient, workspace.data(),
                         bias_partials, count, tokens, rows / sequences, blocks});
        },
        input, output_gradient, input_gradient, weights, biases);
  });
  impl::column_sum<Space, A, G>(stream, "causal_convolution/backward/weight_sums", rows, channels * taps,
                                accumulate, {workspace.data(), weight_gradient.data()});
  if (!impl::is_empty(bias_gradient))
    impl::column_sum<Space, A, G>(stream, "causal_convolution/backward/bias_sums", rows, channels, accumulate,
                                  {bias_partials, bias_gradient.data()});
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                \
  template void causal_convolution_backward<SPACE, T, G>(                                              \
      Stream<SPACE>&, std::int64_t, Columns<const T>, Matrix<const T, SPACE>, Vector<const T, SPACE>,  \
      Columns<const T>, Columns<T>, Matrix<G, SPACE>, Vector<G, SPACE>, Matrix<Accumulator<T>, SPACE>, \
      bool);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
