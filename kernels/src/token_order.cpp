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

/// A token's place is the number of tokens that come before it. A team counts for 32 tokens, in slices of the
/// others: tokens^2 comparisons, but no data-dependent step.
template <int Width>
struct CountPlaces {
  static constexpr int threads = 256;
  static constexpr int own = 32;
  static constexpr int slices = threads / own;

  const std::int32_t* ids;
  std::int32_t* order;
  std::int64_t tokens;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t begin = team.league_rank() * own;
    const std::int64_t end = begin + own < tokens ? begin + own : tokens;
    const int slice = team.rank() / own;
    const std::int64_t token = begin + team.rank() % own;
    const std::int32_t id = token < tokens ? ids[token] : 0;
    std::int32_t place = count(0, begin, slice, id, true) + count(end, tokens, slice, id, false);
    if (slice == 0)
      for (std::int64_t other = begin; other < end; ++other)
        place += ids[other] < id || (ids[other] == id && other < token) ? 1 : 0;
    std::int32_t* places = team.template scratch<std::int32_t>();
    places[team.rank()] = place;
    team.barrier();
    if (slice != 0 || token >= tokens) return;
    for (int other = 1; other < slices; ++other) place += places[team.rank() + other * own];
    order[place] = static_cast<std::int32_t>(token);
  }

 private:
  /// How many ids of this slice of [begin, end) are less than `id`, or equal to it if `equal` counts.
  KOKKOS_FUNCTION std::int32_t count(std::int64_t begin, std::int64_t end, int slice, std::int32_t id,
                                     bool equal) const {
    const std::int64_t packets = (end - begin) / Width;
    const std::int32_t* from = ids + begin;
    std::int32_t total = 0;
    for (std::int64_t p = packets * slice / slices; p < packets * (slice + 1) / slices; ++p) {
      const auto value = backend::load_packet<Width>(from, p);
      for (int i = 0; i < Width; ++i) total += (equal ? value[i] <= id : value[i] < id) ? 1 : 0;
    }
    if (slice == 0)
      for (std::int64_t i = packets * Width; i < end - begin; ++i)
        total += (equal ? from[i] <= id : from[i] < id) ? 1 : 0;
    return total;
  }
};

}  // namespace

template <class Space>
void token_order(Stream<Space>& stream, Vector<const std::int32_t, Space> ids,
                 Vector<std::int32_t, Space> order) {
  const std::int64_t tokens = impl::rows_of(ids);
  impl::require_shape(impl::is_vector(ids, tokens) && impl::is_vector(order, tokens) && tokens < INT32_MAX,
                      "token_order: ids and order must have the same length, below 2^31");
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
                                                 Functor::threads * sizeof(std::int32_t)},
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
