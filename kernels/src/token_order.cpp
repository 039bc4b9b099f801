// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/embedding.hpp>

#include "shapes.hpp"

#include <algorithm>

namespace encore::kernels {

namespace {

/// Sorts in place. The keys (id, position) are all different, so the result is the stable order.
struct SortOnHost {
  const std::int32_t* ids;
  std::int32_t* order;
  std::int64_t tokens;

  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    KOKKOS_IF_ON_HOST((for (std::int64_t i = 0; i < tokens; ++i) order[i] = static_cast<std::int32_t>(i);
                       std::sort(order, order + tokens, [keys = ids](std::int32_t a, std::int32_t b) {
                         return keys[a] != keys[b] ? keys[a] < keys[b] : a < b;
                       });))
  }
};

/// A token's place is the number of tokens that come before it. A team counts for 64 tokens, in slices of the
/// others: tokens^2 comparisons, but no data-dependent step.
template <int Width>
struct CountPlaces {
  static constexpr int threads = 256;
  static constexpr int lanes = 32;
  static constexpr int each = 2;  ///< tokens of a thread
  static constexpr int own = each * lanes;
  static constexpr int slices = threads / lanes;

  const std::int32_t* ids;
  std::int32_t* order;
  std::int64_t tokens;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t begin = team.league_rank() * own;
    const std::int64_t end = begin + own < tokens ? begin + own : tokens;
    const int slice = team.rank() / lanes, lane = team.rank() % lanes;
    std::int32_t id[each], place[each] = {};
    for (int k = 0; k < each; ++k)
      id[k] = begin + k * lanes + lane < tokens ? ids[begin + k * lanes + lane] : 0;
    count<true>(0, begin, slice, id, place);
    count<false>(end, tokens, slice, id, place);
    for (std::int64_t other = begin + slice; other < end; other += slices) {
      const std::int32_t value = ids[other];
      for (int k = 0; k < each; ++k)
        place[k] += value < id[k] || (value == id[k] && other < begin + k * lanes + lane) ? 1 : 0;
    }
    std::int32_t* places = team.template scratch<std::int32_t>();
    for (int k = 0; k < each; ++k) places[(k * slices + slice) * lanes + lane] = place[k];
    team.barrier();
    const int k = team.rank() / lanes;  // The token that this thread puts in its place.
    const std::int64_t token = begin + team.rank();
    if (k >= each || token >= tokens) return;
    std::int32_t total = 0;
    for (int other = 0; other < slices; ++other) total += places[(k * slices + other) * lanes + lane];
    order[total] = static_cast<std::int32_t>(token);
  }

 private:
  /// Adds how many ids of this slice of [begin, end) are less than each of the own, or equal to it if `Equal` counts.
  template <bool Equal>
  KOKKOS_FUNCTION void count(std::int64_t begin, std::int64_t end, int slice, const std::int32_t (&id)[each],
                             std::int32_t (&place)[each]) const {
    constexpr int unroll = 4;
    const auto packets = static_cast<int>((end - begin) / Width);
    const std::int32_t* from = ids + begin;
    std::int32_t sums[Width][each] = {};  // Apart, so that one comparison needs not wait for another.
    const auto add = [&](std::int32_t value, int i) {
      for (int k = 0; k < each; ++k) sums[i][k] += (Equal ? value <= id[k] : value < id[k]) ? 1 : 0;
    };
    int p = slice;
    for (; p + (unroll - 1) * slices < packets; p += unroll * slices) {
      backend::Packet<std::int32_t, Width> value[unroll];
      for (int u = 0; u < unroll; ++u) value[u] = backend::load_packet<Width>(from, p + u * slices);
      for (int u = 0; u < unroll; ++u)
        for (int i = 0; i < Width; ++i) add(value[u][i], i);
    }
    for (; p < packets; p += slices) {
      const auto value = backend::load_packet<Width>(from, p);
      for (int i = 0; i < Width; ++i) add(value[i], i);
    }
    for (std::int64_t i = std::int64_t(packets) * Width + slice; i < end - begin; i += slices)
      add(from[i], 0);
    for (int i = 0; i < Width; ++i)
      for (int k = 0; k < each; ++k) place[k] += sums[i][k];
  }
};

}  // namespace

template <class Space>
void token_order(Stream<Space>& stream, Vector<const std::int32_t, Space> ids,
                 Vector<std::int32_t, Space> order) {
  const std::int64_t tokens = impl::rows_of(ids);
  impl::require_shape(impl::is_vector(ids, tokens) && impl::is_vector(order, tokens) && tokens < INT32_MAX,
                      "token_order: ids and order must have the same length, below 2^31");
  const backend::BesideScope<Space> beside(stream);
  const auto queue = [&](auto shape, const auto& functor) {
    launch(stream, "embedding/token_order", {backend::read(ids), backend::write(order)}, shape, functor);
  };
  if constexpr (backend::is_host_space<Space>) {
    queue(backend::Range{tokens == 0 ? 0 : 1}, SortOnHost{ids.data(), order.data(), tokens});
  } else {
    impl::with_packet_width<Space>(
        0,  // The last packet may be partial.
        [&](auto width) {
          using Functor = CountPlaces<width>;
          queue(backend::Teams<Functor::threads>{impl::rounded_up_quotient(tokens, Functor::own),
                                                 Functor::each * Functor::threads * sizeof(std::int32_t)},
                Functor{ids.data(), order.data(), tokens});
        },
        ids.data());
  }
}

#define ENCORE_INSTANTIATE(SPACE)                                                     \
  template void token_order<SPACE>(Stream<SPACE>&, Vector<const std::int32_t, SPACE>, \
                                   Vector<std::int32_t, SPACE>);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
