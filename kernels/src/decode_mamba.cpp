// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/decode_mamba.hpp>

#include "column_access.hpp"
#include "divisor.hpp"
#include "lanes.hpp"
#include "mathematics.hpp"

namespace encore::kernels {

namespace {

constexpr int most_width = 8;

/// An item is a channel of a sequence.
template <class T>
struct ConvolutionStep {
  using A = Accumulator<T>;

  const std::int32_t* count;
  Columns<const T> input;
  const T* weight;
  const T* bias;
  T* window;
  Columns<T> output;
  impl::Divisor channels;
  std::int64_t tokens, width;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t sequence = channels.quotient(item), all = channels.divisor();
    const std::int64_t channel = item - sequence * all;
    T* const kept = window + sequence * (width - 1) * all + channel;
    const T* const taps = weight + channel * width;
    T seen[most_width];
    for (std::int64_t k = 0; k + 1 < width; ++k) seen[k] = kept[k * all];
    const std::int64_t holds = count[sequence];
    for (std::int64_t t = 0; t < tokens; ++t) {
      T& result = output.data[(sequence * tokens + t) * output.stride + channel];
      if (t >= holds) {
        result = static_cast<T>(A(0));
        continue;
      }
      seen[width - 1] = input.data[(sequence * tokens + t) * input.stride + channel];
      A sum = bias != nullptr ? static_cast<A>(bias[channel]) : A(0);
      for (std::int64_t k = 0; k < width; ++k) sum += static_cast<A>(taps[k]) * static_cast<A>(seen[k]);
      result = static_cast<T>(sum * impl::logistic(sum));
      for (std::int64_t k = 0; k + 1 < width; ++k) seen[k] = seen[k + 1];
    }
    for (std::int64_t k = 0; k + 1 < width; ++k) kept[k * all] = seen[k];
  }
};

KOKKOS_INLINE_FUNCTION float softplus(float x) { return x > 20.0F ? x : Kokkos::log1p(Kokkos::exp(x)); }
KOKKOS_INLINE_FUNCTION double softplus(double x) { return x > 40.0 ? x : Kokkos::log1p(Kokkos::exp(x)); }

/// A team has some rows of the state of one head, and walks over the step's tokens; each entry of the state belongs to
/// one thread.
template <class T>
struct StateSpaceStep {
  using A = Accumulator<T>;
  static constexpr int threads = 128;
  static constexpr int lanes_of_row = 16;
  static constexpr std::int64_t rows_of_team = threads / lanes_of_row;

  const std::int32_t* count;
  StateSpaceShape shape;
  Columns<const T> x, b, c, step;
  const T* step_bias;
  const T* decay_log;
  const T* skip;
  A* state;
  Columns<T> output;
  std::int64_t parts;  ///< of a head

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t item = impl::quotient(team.league_rank(), parts);
    const std::int64_t part = team.league_rank() - item * parts;
    const std::int64_t sequence = impl::quotient(item, shape.heads), head = item - sequence * shape.heads;
    const std::int64_t group = impl::quotient(head * shape.groups, shape.heads);
    const std::int64_t length = impl::rounded_up_quotient(shape.head_dim, parts);
    const std::int64_t begin = part * length;
    const std::int64_t end = begin + length < shape.head_dim ? begin + length : shape.head_dim;
    const std::int64_t holds = count[sequence];
    const impl::LaneGroups<lanes_of_row, Team> lanes(team);
    const A rate = -exponential_of(decay_log[head]), skipped = static_cast<A>(skip[head]);
    const A bias = static_cast<A>(step_bias[head]);
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      const std::int64_t row = sequence * shape.tokens + t;
      T* const result = output.data + row * output.stride + head * shape.head_dim;
      if (t >= holds) {
        team.for_each(end - begin, [=](std::int64_t p) { result[begin + p] = static_cast<T>(A(0)); });
        continue;
      }
      A time = softplus(static_cast<A>(step.data[row * step.stride + head]) + bias);
      const A least = static_cast<A>(shape.step_minimum), most = static_cast<A>(shape.step_maximum);
      time = time < least ? least : time;
      time = most > 0 && time > most ? most : time;
      const A decay = Kokkos::exp(rate * time);
      const T* const of_b = b.data + row * b.stride + group * shape.state;
      const T* const of_c = c.data + row * c.stride + group * shape.state;
      for (std::int64_t p = begin + lanes.group; p < end; p += lanes.groups) {
        const A in = static_cast<A>(x.data[row * x.stride + head * shape.head_dim + p]);
        A* const entries = state + (item * shape.head_dim + p) * shape.state;
        A sum = A(0);
        const A drive = time * in;
        if constexpr (impl::is_host_team<Team>) {
#pragma omp simd reduction(+ : sum)
          for (std::int64_t n = 0; n < shape.state; ++n) {
            const A entry = decay * entries[n] + drive * static_cast<A>(of_b[n]);
            entries[n] = entry;
            sum += entry * static_cast<A>(of_c[n]);
          }
        } else {
          for (std::int64_t n = lanes.lane; n < shape.state; n += lanes.lanes) {
            const A entry = decay * entries[n] + drive * static_cast<A>(of_b[n]);
            entries[n] = entry;
            sum += entry * static_cast<A>(of_c[n]);
          }
        }
        sum = lanes.sum(sum);
        if (lanes.lane == 0) result[p] = static_cast<T>(sum + skipped * in);
      }
    }
  }

 private:
  KOKKOS_FUNCTION static A exponential_of(T value) { return Kokkos::exp(static_cast<A>(value)); }
};

}  // namespace

template <class Space, class T>
void causal_convolution_step(Stream<Space>& stream, const DecodeRows<Space>& rows, Columns<const T> input,
                             Matrix<const T, Space> weight, Vector<const T, Space> bias,
                             Vector<T, Space> window, Columns<T> output) {
  const std::int64_t channels = impl::rows_of(weight), width = impl::columns_of(weight);
  impl::require_shape(width >= 2 && width <= most_width, "causal_convolution_step: the width must be 2 to 8");
  impl::require_shape(impl::is_vector(rows.count, rows.sequences()) && input.rows == rows.rows() &&
                          output.rows == rows.rows() && input.columns == channels &&
                          output.columns == channels && impl::is_matrix(weight, channels, width) &&
                          (impl::is_empty(bias) || impl::is_vector(bias, channels)) &&
                          impl::is_vector(window, rows.sequences() * (width - 1) * channels),
                      "causal_convolution_step: input and output must be [rows, channels], weight [channels, "
                      "width], bias [channels] and the window [sequences, width - 1, channels]");
  launch(stream, "decode/convolution",
         {backend::read(rows.count), impl::read(input), backend::read(weight), backend::read(bias),
          backend::write(window), impl::write(output)},
         backend::Range{rows.sequences() * channels},
         ConvolutionStep<T>{rows.count.data(), input, weight.data(), bias.data(), window.data(), output,
                            impl::Divisor(channels), rows.tokens, width});
}

template <class Space, class T>
void state_space_step(Stream<Space>& stream, const DecodeRows<Space>& rows, const StateSpaceShape& shape,
                      const StateSpaceInputs<Space, T>& inputs, Vector<Accumulator<T>, Space> state,
                      Columns<T> output) {
  const auto fits = [&](const auto& columns, std::int64_t count) {
    return columns.rows == rows.rows() && columns.columns == count;
  };
  impl::require_shape(
      impl::is_vector(rows.count, rows.sequences()) && shape.batch == rows.sequences() &&
          shape.tokens == rows.tokens && shape.heads > 0 && shape.groups > 0 &&
          shape.heads % shape.groups == 0 && fits(inputs.x, shape.heads * shape.head_dim) &&
          fits(inputs.b, shape.groups * shape.state) && fits(inputs.c, shape.groups * shape.state) &&
          fits(inputs.step, shape.heads) && impl::is_vector(inputs.step_bias, shape.heads) &&
          impl::is_vector(inputs.decay_log, shape.heads) && impl::is_vector(inputs.skip, shape.heads) &&
          impl::is_vector(state, shape.batch * shape.heads * shape.head_dim * shape.state) &&
          fits(output, shape.heads * shape.head_dim),
      "state_space_step: the inputs must have the rows of the step, and the state be [sequences, heads, "
      "head_dim, state]");
  using Functor = StateSpaceStep<T>;
  const std::int64_t parts =
      backend::is_host_space<Space> ? 1 : impl::rounded_up_quotient(shape.head_dim, Functor::rows_of_team);
  launch(stream, "decode/state_space",
         {backend::read(rows.count), impl::read(inputs.x), impl::read(inputs.b), impl::read(inputs.c),
          impl::read(inputs.step), backend::read(inputs.step_bias), backend::read(inputs.decay_log),
          backend::read(inputs.skip), backend::write(state), impl::write(output)},
         backend::Teams<Functor::threads>{shape.batch * shape.heads * parts},
         Functor{rows.count.data(), shape, inputs.x, inputs.b, inputs.c, inputs.step, inputs.step_bias.data(),
                 inputs.decay_log.data(), inputs.skip.data(), state.data(), output, parts});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                         \
  template void causal_convolution_step<SPACE, T>(Stream<SPACE>&, const DecodeRows<SPACE>&,                  \
                                                  Columns<const T>, Matrix<const T, SPACE>,                  \
                                                  Vector<const T, SPACE>, Vector<T, SPACE>, Columns<T>);     \
  template void state_space_step<SPACE, T>(Stream<SPACE>&, const DecodeRows<SPACE>&, const StateSpaceShape&, \
                                           const StateSpaceInputs<SPACE, T>&, Vector<Accumulator<T>, SPACE>, \
                                           Columns<T>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
