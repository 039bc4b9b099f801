// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/rope.hpp>

#include "divisor.hpp"
#include "filling_width.hpp"

namespace encore::kernels {

namespace {

template <class A>
struct RopeTables {
  RopeFrequencies frequencies;
  A* cosine;
  A* sine;
  std::int64_t half;

  KOKKOS_FUNCTION void operator()(std::int64_t entry) const {
    const std::int64_t position = entry / half, pair = entry - position * half;
    const double angle = static_cast<double>(position) * frequencies.of(pair, half);
    cosine[entry] = static_cast<A>(frequencies.scale * Kokkos::cos(angle));
    sine[entry] = static_cast<A>(frequencies.scale * Kokkos::sin(angle));
  }
};

/// `Pairs` pairs of one head per work item; 0 stands for all pairs of the head, in one vectorised loop.
template <int Pairs, RopeStyle Style, class T>
struct Rope {
  using A = Accumulator<T>;

  const A* cosine;
  const A* sine;
  T* data;
  impl::Divisor sequence, heads, parts;  ///< parts: of a head, one for each work item
  std::int64_t half, row_stride;
  A direction;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t row_head = parts.quotient(item), part = item - row_head * parts.divisor();
    const std::int64_t token = heads.quotient(row_head), head = row_head - token * heads.divisor();
    const std::int64_t position = token - sequence.quotient(token) * sequence.divisor();
    const A* cosines = cosine + position * half;
    const A* sines = sine + position * half;
    T* values = data + token * row_stride + head * 2 * half;
    if constexpr (Pairs > 1)
      turn_packet(cosines, sines, values, part);
    else if constexpr (Pairs == 1)
      turn(cosines, sines, values, part);
    else
      turn_head(cosines, sines, values);
  }

 private:
  KOKKOS_FUNCTION void turn(const A* cosines, const A* sines, T* values, std::int64_t pair) const {
    const std::int64_t first = Style == RopeStyle::half_split ? pair : 2 * pair;
    const std::int64_t second = Style == RopeStyle::half_split ? pair + half : 2 * pair + 1;
    const A x = static_cast<A>(values[first]), y = static_cast<A>(values[second]);
    const A c = cosines[pair], s = direction * sines[pair];
    values[first] = static_cast<T>(x * c - y * s);
    values[second] = static_cast<T>(x * s + y * c);
  }

  KOKKOS_FUNCTION void turn_head(const A* cosines, const A* sines, T* values) const {
    const std::int64_t pairs = half;
#pragma GCC ivdep
    for (std::int64_t pair = 0; pair < pairs; ++pair) turn(cosines, sines, values, pair);
  }

  KOKKOS_FUNCTION void turn_packet(const A* cosines, const A* sines, T* values, std::int64_t part) const {
    const auto c = backend::load_packet<Pairs>(cosines, part);
    const auto s = backend::load_packet<Pairs>(sines, part);
    if constexpr (Style == RopeStyle::half_split) {
      auto x = backend::load_packet<Pairs>(values, part);
      auto y = backend::load_packet<Pairs>(values + half, part);
      for (int i = 0; i < Pairs; ++i) turn_pair(x[i], y[i], c[i], s[i]);
      backend::store_packet(values, part, x);
      backend::store_packet(values + half, part, y);
    } else {
      auto xy = backend::load_packet<2 * Pairs>(values, part);
      for (int i = 0; i < Pairs; ++i) turn_pair(xy[2 * i], xy[2 * i + 1], c[i], s[i]);
      backend::store_packet(values, part, xy);
    }
  }

  KOKKOS_FUNCTION void turn_pair(T& first, T& second, A c, A s) const {
    const A x = static_cast<A>(first), y = static_cast<A>(second);
    s *= direction;
    first = static_cast<T>(x * c - y * s);
    second = static_cast<T>(x * s + y * c);
  }
};

template <RopeStyle Style, class Space, class T>
void launch_rope(Stream<Space>& stream, const char* label, Matrix<const Accumulator<T>, Space> cosine,
                 Matrix<const Accumulator<T>, Space> sine, T* data, std::int64_t tokens,
                 std::int64_t sequence, std::int64_t heads, std::int64_t half, std::int64_t row_stride,
                 bool inverse) {
  const std::int64_t span = tokens == 0 ? 0 : (tokens - 1) * row_stride + heads * 2 * half;
  const auto queue = [&](auto pairs) {
    const std::int64_t parts = pairs == 0 ? 1 : half / (pairs == 0 ? 1 : pairs);
    launch(stream, label, {backend::read(cosine), backend::read(sine), backend::write(data, span)},
           backend::Range{tokens * heads * parts},
           Rope<pairs, Style, T>{cosine.data(), sine.data(), data, impl::Divisor(sequence),
                                 impl::Divisor(heads), impl::Divisor(parts), half, row_stride,
                                 inverse ? Accumulator<T>(-1) : Accumulator<T>(1)});
  };
  if constexpr (backend::is_host_space<Space>) {
    queue(impl::WidthConstant<0>{});
  } else {
    constexpr int width = backend::packet_width<T>;
    constexpr int pairs = Style == RopeStyle::half_split ? width : width / 2;
    // A head's pairs are the columns. Its halves, and rows, begin at multiples of what a thread takes.
    const bool whole = row_stride % width == 0 && impl::is_aligned<width>(data);
    impl::with_filling_width<Space, pairs>(tokens * heads, whole ? half : 1, queue, cosine.data(),
                                           sine.data());
  }
}

}  // namespace

template <class Space, class A>
void rope_tables(Stream<Space>& stream, const RopeFrequencies& frequencies, Matrix<A, Space> cosine,
                 Matrix<A, Space> sine) {
  const std::int64_t sequence = impl::rows_of(cosine), half = impl::columns_of(cosine);
  impl::require_shape(impl::is_matrix(cosine, sequence, half) && impl::is_matrix(sine, sequence, half),
                      "rope_tables: cosine and sine must both be [sequence, head_dim / 2]");
  launch(stream, "rope/tables", {backend::write(cosine), backend::write(sine)},
         backend::Range{sequence * half}, RopeTables<A>{frequencies, cosine.data(), sine.data(), half});
}

template <class Space, class T>
void rope(Stream<Space>& stream, RopeStyle style, Matrix<const Accumulator<T>, Space> cosine,
          Matrix<const Accumulator<T>, Space> sine, T* data, std::int64_t tokens, std::int64_t sequence,
          std::int64_t heads, std::int64_t head_dim, std::int64_t row_stride, bool inverse) {
  const std::int64_t half = head_dim / 2;
  impl::require_shape(head_dim == 2 * half && heads >= 0 && row_stride >= heads * head_dim,
                      "rope: head_dim must be even and a row must hold heads * head_dim entries");
  impl::require_shape(
      sequence > 0 && impl::has_rows(cosine, sequence, half) && impl::has_rows(sine, sequence, half),
      "rope: the tables must be [>= sequence, head_dim / 2]");
  const char* label = inverse ? "rope/backward" : "rope/forward";
  if (style == RopeStyle::half_split) {
    launch_rope<RopeStyle::half_split>(stream, label, cosine, sine, data, tokens, sequence, heads, half,
                                       row_stride, inverse);
  } else {
    launch_rope<RopeStyle::interleaved>(stream, label, cosine, sine, data, tokens, sequence, heads, half,
                                        row_stride, inverse);
  }
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                \
  template void rope<SPACE, T>(Stream<SPACE>&, RopeStyle, Matrix<const Accumulator<T>, SPACE>,      \
                               Matrix<const Accumulator<T>, SPACE>, T*, std::int64_t, std::int64_t, \
                               std::int64_t, std::int64_t, std::int64_t, bool);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

#define ENCORE_INSTANTIATE(SPACE)                                                                       \
  template void rope_tables<SPACE, float>(Stream<SPACE>&, const RopeFrequencies&, Matrix<float, SPACE>, \
                                          Matrix<float, SPACE>);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE
ENCORE_IF_SERIAL(template void rope_tables<Kokkos::Serial, double>(Stream<Kokkos::Serial>&,
                                                                   const RopeFrequencies&,
                                                                   Matrix<double, Kokkos::Serial>,
                                                                   Matrix<double, Kokkos::Serial>);)

}  // namespace encore::kernels
