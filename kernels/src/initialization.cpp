// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/philox.hpp>
#include <encore/kernels/initialization.hpp>

#include "map.hpp"

#include <cmath>

namespace encore::kernels {

namespace {

template <class T>
struct FillNormal {
  T* values;
  std::int64_t size;
  double mean, deviation;
  backend::RandomState state;
  std::uint32_t segment;
  std::int64_t first_quad;

  KOKKOS_FUNCTION void operator()(std::int64_t quad) const {
    const auto drawn = backend::random_words(state, segment, static_cast<std::uint64_t>(first_quad + quad));
    for (int pair = 0; pair < 2; ++pair) {
      // The first number must not be 0: it lies in (0, 1].
      const double radius_word = static_cast<double>(drawn.word[2 * pair]) + 1;
      const double radius = Kokkos::sqrt(-2 * Kokkos::log(radius_word / 4294967296.0));
      const double angle = 6.283185307179586477 * (drawn.word[2 * pair + 1] / 4294967296.0);
      put(4 * quad + 2 * pair, radius * Kokkos::cos(angle));
      put(4 * quad + 2 * pair + 1, radius * Kokkos::sin(angle));
    }
  }

 private:
  KOKKOS_FUNCTION void put(std::int64_t element, double normal) const {
    if (element < size)
      values[element] = static_cast<T>(static_cast<Accumulator<T>>(mean + deviation * normal));
  }
};

/// values[e] = transform(a number uniform in [least, most)).
template <class Transform, class T>
struct FillUniform {
  T* values;
  std::int64_t size;
  double least, most;
  backend::RandomState state;
  std::uint32_t segment;
  Transform transform;
  std::int64_t first_quad;

  KOKKOS_FUNCTION void operator()(std::int64_t quad) const {
    const auto drawn = backend::random_words(state, segment, static_cast<std::uint64_t>(first_quad + quad));
    for (int i = 0; i < 4; ++i) {
      if (4 * quad + i >= size) return;
      const double uniform = least + (most - least) * (drawn.word[i] / 4294967296.0);
      values[4 * quad + i] = static_cast<T>(static_cast<Accumulator<T>>(transform(uniform)));
    }
  }
};

/// The v with softplus(v) = s is s + ln(1 - exp(-s)).
struct InverseSoftplusOfStep {
  double floor;

  KOKKOS_FUNCTION double operator()(double logarithm) const {
    const double drawn = Kokkos::exp(logarithm);
    const double step = drawn < floor ? floor : drawn;
    return step + Kokkos::log(-Kokkos::expm1(-step));
  }
};

template <class T>
struct FillLogOfRank {
  T* values;
  std::int64_t first;

  KOKKOS_FUNCTION void operator()(std::int64_t element) const {
    const double logarithm = Kokkos::log(static_cast<double>(first + element + 1));
    values[element] = static_cast<T>(static_cast<Accumulator<T>>(logarithm));
  }
};

template <int Width, class T>
struct FillConstant {
  T* values;
  std::int64_t size;
  T value;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    if constexpr (Width == 1) {
      values[item] = value;
    } else if ((item + 1) * Width <= size) {
      backend::Packet<T, Width> packet;
      for (int i = 0; i < Width; ++i) packet[i] = value;
      backend::store_packet(values, item, packet);
    } else {
      for (std::int64_t e = item * Width; e < size; ++e) values[e] = value;
    }
  }
};

struct Same {
  template <class A>
  KOKKOS_FUNCTION A operator()(A value) const {
    return value;
  }
};

std::int64_t quad_of(std::int64_t first) {
  impl::require_shape(first >= 0 && first % 4 == 0, "fill: the first element must be a multiple of 4");
  return first / 4;
}

}  // namespace

template <class Space, class T>
void fill_normal(Stream<Space>& stream, Vector<T, Space> values, double mean, double deviation,
                 std::uint64_t seed, std::uint32_t segment, std::int64_t first) {
  const std::int64_t size = impl::rows_of(values);
  launch(stream, "fill/normal", {backend::write(values)}, backend::Range{impl::rounded_up_quotient(size, 4)},
         FillNormal<T>{values.data(), size, mean, deviation, {seed, 0}, segment, quad_of(first)});
}

template <class Space, class T>
void fill_uniform(Stream<Space>& stream, Vector<T, Space> values, double least, double most,
                  std::uint64_t seed, std::uint32_t segment, std::int64_t first) {
  const std::int64_t size = impl::rows_of(values);
  launch(stream, "fill/uniform", {backend::write(values)}, backend::Range{impl::rounded_up_quotient(size, 4)},
         FillUniform<Same, T>{values.data(), size, least, most, {seed, 0}, segment, {}, quad_of(first)});
}

template <class Space, class T>
void fill_log_of_rank(Stream<Space>& stream, Vector<T, Space> values, std::int64_t first) {
  launch(stream, "fill/log_of_rank", {backend::write(values)}, backend::Range{impl::rows_of(values)},
         FillLogOfRank<T>{values.data(), first});
}

template <class Space, class T>
void fill_inverse_softplus_of_step(Stream<Space>& stream, Vector<T, Space> values, double least, double most,
                                   double floor, std::uint64_t seed, std::uint32_t segment,
                                   std::int64_t first) {
  impl::require_shape(least > 0 && most >= least && floor > 0,
                      "fill_inverse_softplus_of_step: the bounds must be positive and in order");
  const std::int64_t size = impl::rows_of(values);
  launch(
      stream, "fill/inverse_softplus_of_step", {backend::write(values)},
      backend::Range{impl::rounded_up_quotient(size, 4)},
      FillUniform<InverseSoftplusOfStep, T>{
          values.data(), size, std::log(least), std::log(most), {seed, 0}, segment, {floor}, quad_of(first)});
}

template <class Space, class T>
void fill_constant(Stream<Space>& stream, Vector<T, Space> values, double value) {
  const std::int64_t size = impl::rows_of(values);
  impl::with_packet_width<Space>(
      0,  // The last packet may be partial.
      [&](auto width) {
        launch(stream, "fill/constant", {backend::write(values)},
               backend::Range{impl::rounded_up_quotient(size, width)},
               FillConstant<width, T>{values.data(), size, static_cast<T>(value)});
      },
      values.data());
}

template <class Space, class From, class To>
void convert(Stream<Space>& stream, Vector<const From, Space> input, Vector<To, Space> output) {
  const std::int64_t size = impl::rows_of(input);
  impl::require_shape(impl::is_vector(input, size) && impl::is_vector(output, size),
                      "convert: input and output must have the same length");
  impl::launch_map(stream, "convert", Same{}, size, output.data(), input.data());
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                         \
  template void fill_normal<SPACE, T>(Stream<SPACE>&, Vector<T, SPACE>, double, double, std::uint64_t,       \
                                      std::uint32_t, std::int64_t);                                          \
  template void fill_uniform<SPACE, T>(Stream<SPACE>&, Vector<T, SPACE>, double, double, std::uint64_t,      \
                                       std::uint32_t, std::int64_t);                                         \
  template void fill_log_of_rank<SPACE, T>(Stream<SPACE>&, Vector<T, SPACE>, std::int64_t);                  \
  template void fill_inverse_softplus_of_step<SPACE, T>(Stream<SPACE>&, Vector<T, SPACE>, double, double,    \
                                                        double, std::uint64_t, std::uint32_t, std::int64_t); \
  template void fill_constant<SPACE, T>(Stream<SPACE>&, Vector<T, SPACE>, double);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

#define ENCORE_INSTANTIATE(SPACE, FROM, TO) \
  template void convert<SPACE, FROM, TO>(Stream<SPACE>&, Vector<const FROM, SPACE>, Vector<TO, SPACE>);
#define ENCORE_INSTANTIATE_BOTH(SPACE)       \
  ENCORE_INSTANTIATE(SPACE, float, bfloat16) \
  ENCORE_INSTANTIATE(SPACE, bfloat16, float)
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE_BOTH)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, float, double))
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double, float))
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, bfloat16, double))
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double, bfloat16))
#undef ENCORE_INSTANTIATE
#undef ENCORE_INSTANTIATE_BOTH

}  // namespace encore::kernels
