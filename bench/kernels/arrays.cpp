// SPDX-License-Identifier: Apache-2.0
#include "kernel_benchmarks.hpp"

#include <encore/backend/launch.hpp>

namespace encore::bench {

template <class T>
struct FillWithNoise {
  T* data;
  std::uint64_t seed;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    std::uint64_t bits = (static_cast<std::uint64_t>(i) + seed * 0x632be59bd9b4e019U) * 0x9e3779b97f4a7c15U;
    bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9U;
    bits ^= bits >> 29;
    data[i] = T(static_cast<float>(bits >> 40) * 0x1p-23F - 1.0F);
  }
};

struct FillWithPoison {
  std::byte* data;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] = std::byte{255}; }
};

template <class Space, class T>
void fill_with_noise(Stream<Space>& stream, T* data, std::int64_t size, std::uint64_t seed) {
  launch(stream, "noise", {write(data, static_cast<std::size_t>(size))}, Range{size},
         FillWithNoise<T>{data, seed});
}

template <class Space>
void fill_with_poison(Stream<Space>& stream, std::byte* data, std::int64_t size) {
  launch(stream, "poison", {write(data, static_cast<std::size_t>(size))}, Range{size}, FillWithPoison{data});
}

#define ENCORE_INSTANTIATE(SPACE)                                                                         \
  template void fill_with_noise<SPACE, float>(Stream<SPACE>&, float*, std::int64_t, std::uint64_t);       \
  template void fill_with_noise<SPACE, bfloat16>(Stream<SPACE>&, bfloat16*, std::int64_t, std::uint64_t); \
  template void fill_with_poison<SPACE>(Stream<SPACE>&, std::byte*, std::int64_t);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::bench
