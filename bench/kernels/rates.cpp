// SPDX-License-Identifier: Apache-2.0
#include "kernel_benchmarks.hpp"

#include <encore/backend/blas.hpp>

namespace encore::bench {

template <class Space>
Rates measure_rates() {
  constexpr bool host = is_host_space<Space>;
  Stream<Space> stream;
  Rates rates;
  {
    constexpr std::int64_t size = host ? 1 << 22 : 1 << 28;
    const NoiseArray<Space, bfloat16> from(stream, size, 1), to(stream, size, 2);
    constexpr std::size_t bytes = size * sizeof(bfloat16);
    RecordedCall<Space> copy(stream, [&] { stream.copy(to.data(), from.data(), bytes, "copy"); });
    rates.bytes_per_second = 2.0 * static_cast<double>(bytes) / copy.median_seconds(5);
  }
  constexpr std::int64_t size = host ? 512 : 8192;
  const NoiseArray<Space, bfloat16> first(stream, size * size, 3), second(stream, size * size, 4),
      result(stream, size * size, 5);
  Blas<Space> blas(stream);
  RecordedCall<Space> product(stream, [&] {
    blas.template multiply<bfloat16, bfloat16>(
        stream, "product", Transpose::no, {first.data(), size, size, size}, Transpose::yes,
        {second.data(), size, size, size}, {result.data(), size, size, size});
  });
  const auto edge = static_cast<double>(size);
  rates.flops_per_second = 2 * edge * edge * edge / product.median_seconds(host ? 3 : 5);
  return rates;
}

#define ENCORE_INSTANTIATE(SPACE) template Rates measure_rates<SPACE>();
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::bench
