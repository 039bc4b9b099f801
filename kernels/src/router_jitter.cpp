// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/router.hpp>

#include "random_items.hpp"

namespace encore::kernels {

namespace {

template <int Elements, int Width, class T>
struct RouterJitter {
  using A = Accumulator<T>;

  const T* input;
  T* output;
  std::int64_t size;
  const double* epsilon;
  const backend::RandomState* state;
  std::uint32_t segment;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const auto span = static_cast<A>(*epsilon);
    const std::int64_t begin = item * Elements;
    const bool whole = begin + Elements <= size;
    std::uint32_t words[Elements];
    impl::draw_words(state, segment, begin, words);
    if constexpr (Width > 1) {
      if (whole) {
        for (int k = 0; k < Elements / Width; ++k) {
          auto values = backend::load_packet<Width>(input, begin / Width + k);
          for (int i = 0; i < Width; ++i) values[i] = jittered(values[i], words[k * Width + i], span);
          backend::store_packet(output, begin / Width + k, values);
        }
        return;
      }
    }
    const int count = whole ? Elements : static_cast<int>(size - begin);
    const T* in = input + begin;
    T* out = output + begin;
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) out[i] = jittered(in[i], words[i], span);
  }

 private:
  KOKKOS_FUNCTION static T jittered(T value, std::uint32_t word, A span) {
    const A position = 2 * static_cast<A>(backend::uniform_of(word)) - 1;
    return static_cast<T>(static_cast<A>(value) * (1 + span * position));
  }
};

}  // namespace

template <class Space, class T>
void router_jitter(Stream<Space>& stream, Matrix<const T, Space> input, Matrix<T, Space> output,
                   const double* epsilon, const backend::RandomState* state, std::uint32_t segment) {
  const std::int64_t rows = impl::rows_of(input), columns = impl::columns_of(input), size = rows * columns;
  impl::require_shape(impl::is_matrix(input, rows, columns) && impl::is_matrix(output, rows, columns),
                      "router_jitter: input and output must have the same shape");
  impl::with_packet_width<Space>(
      0,  // The last packet may be partial.
      [&](auto width) {
        constexpr int elements = impl::random_item_elements<Space, width>;
        launch(stream, "router/jitter",
               {backend::read(input), backend::read(epsilon, 1), backend::read(state, 1),
                backend::write(output)},
               backend::Range{impl::rounded_up_quotient(size, elements)},
               RouterJitter<elements, width, T>{input.data(), output.data(), size, epsilon, state, segment});
      },
      input.data(), output.data());
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                              \
  template void router_jitter<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<T, SPACE>, \
                                        const double*, const backend::RandomState*, std::uint32_t);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
