// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/dispatch.hpp>

#include "lanes.hpp"
#include "shapes.hpp"

namespace encore::kernels {

namespace {

/// Pairs are cut into tiles of whole chunks. A chunk has as many pairs as a GPU's team has threads.
constexpr int chunk_pairs = 256;
constexpr std::int64_t most_tiles = 128;
/// What one team of a GPU places sooner than two launches do.
constexpr int lone_threads = 1024;
constexpr std::int64_t most_lone_pairs = 2048, most_lone_experts = 256;

std::int64_t tile_pairs_of(std::int64_t pairs) {
  const std::int64_t chunks = impl::rounded_up_quotient(pairs, chunk_pairs * most_tiles);
  return (chunks < 1 ? 1 : chunks) * chunk_pairs;
}

struct Pairs {
  const std::int32_t* experts;
  std::int64_t count, tile_pairs;

  KOKKOS_FUNCTION std::int64_t begin_of(std::int64_t tile) const { return tile * tile_pairs; }
  KOKKOS_FUNCTION std::int64_t end_of(std::int64_t tile) const {
    return (tile + 1) * tile_pairs < count ? (tile + 1) * tile_pairs : count;
  }
};

/// First phase: how many pairs of a tile go to each expert.
struct CountTiles {
  Pairs pairs;
  std::int32_t* tile_counts;  ///< [tiles, experts]
  std::int64_t experts;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t begin = pairs.begin_of(team.league_rank()), end = pairs.end_of(team.league_rank());
    std::int32_t* result = tile_counts + team.league_rank() * experts;
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t e = 0; e < experts; ++e) result[e] = 0;
      for (std::int64_t pair = begin; pair < end; ++pair)
        if (pairs.experts[pair] >= 0) ++result[pairs.experts[pair]];
    } else {
      auto* counts = team.template scratch<std::int32_t>();
      team.for_each(experts, [&](std::int64_t e) { counts[e] = 0; });
      team.barrier();
      for (std::int64_t pair = begin + team.rank(); pair < end; pair += Team::size())
        if (pairs.experts[pair] >= 0) Kokkos::atomic_inc(&counts[pairs.experts[pair]]);
      team.barrier();
      team.for_each(experts, [&](std::int64_t e) { result[e] = counts[e]; });
    }
  }
};

/// Second phase: every team adds up the counts for itself, which is cheaper than one launch more, and gives
/// the pairs of its tile their rows. A GPU's lone team, which has no tile_counts, counts the pairs itself. Counts are
/// read in packets of Width experts.
template <int Threads, int Width>
struct PlacePairs {
  static constexpr int warps = Threads / impl::Warp::lanes;

  Pairs pairs;
  const std::int32_t* tile_counts;
  std::int64_t tiles, experts, capacity, rows;
  std::int32_t* begins;
  std::int32_t* ends;
  std::int32_t* source;
  std::int32_t* row_of;
  std::int32_t* needed;

  std::size_t scratch_bytes() const {
    const std::int64_t parts = tile_counts == nullptr ? 0 : 2 * Threads * Width, by_warp = warps * experts;
    return (3 * experts + (parts > by_warp ? parts : by_warp)) * sizeof(std::int32_t);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    auto* totals = team.template scratch<std::int32_t>();  ///< pairs of each expert
    std::int32_t* starts = totals + experts;               ///< pairs of the experts before it
    std::int32_t* next = starts + experts;  ///< row, within its expert, of the tile's next pair of each
    std::int32_t* parts = next + experts;   ///< sums of threads, then pairs of each expert in each warp
    if (tile_counts == nullptr)
      count_pairs(team, totals, next);
    else
      add_tiles(team, parts, totals, next);
    add_experts(team, totals, starts);
    team.barrier();
    if (team.league_rank() == 0) describe(team, totals, starts);
    place(team, parts, starts, next);
    mark_unused(team, totals, starts);
  }

 private:
  KOKKOS_FUNCTION std::int64_t begin_of(std::int64_t expert, const std::int32_t* starts) const {
    return capacity > 0 ? expert * capacity : starts[expert];
  }
  KOKKOS_FUNCTION std::int64_t end_of(std::int64_t expert, std::int64_t total,
                                      const std::int32_t* starts) const {
    const std::int64_t begin = begin_of(expert, starts);
    if (capacity > 0) return begin + (total < capacity ? total : capacity);
    return clipped(begin + total);
  }
  KOKKOS_FUNCTION std::int64_t clipped(std::int64_t row) const { return row < rows ? row : rows; }

  template <class Team>
  KOKKOS_FUNCTION void count_pairs(const Team& team, std::int32_t* totals, std::int32_t* before) const {
    if constexpr (!impl::is_host_team<Team>) {
      team.for_each(experts, [=](std::int64_t e) { totals[e] = before[e] = 0; });
      team.barrier();
      for (std::int64_t first = 0; first < pairs.count; first += Threads) {
        const std::int64_t pair = first + team.rank();
        const std::int32_t expert = pair < pairs.count ? pairs.experts[pair] : -1;
        const auto matches = impl::Warp::matching(expert);
        if (expert >= 0 && matches.earlier == 0) Kokkos::atomic_add(&totals[expert], matches.all);
      }
      team.barrier();
    }
  }

  /// totals: over all tiles; before: over those before this team's.
  template <class Team>
  KOKKOS_FUNCTION void add_tiles(const Team& team, std::int32_t* parts, std::int32_t* totals,
                                 std::int32_t* before) const {
    const std::int64_t own = team.league_rank();
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t e = 0; e < experts; ++e) totals[e] = before[e] = 0;
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const std::int32_t* counts = tile_counts + tile * experts;
        if (tile == own)
          for (std::int64_t e = 0; e < experts; ++e) before[e] = totals[e];
        for (std::int64_t e = 0; e < experts; ++e) totals[e] += counts[e];
      }
    } else {
      int columns = 1;
      while (columns < Threads && columns * Width < experts) columns *= 2;
      const int lanes = Threads / columns, x = team.rank() % columns, y = team.rank() / columns;
      using Counts = backend::Packet<std::int32_t, Width>;
      for (std::int64_t first = 0; first < experts; first += columns * Width) {
        const std::int64_t e = first + x * Width;
        Counts all{}, earlier{};
        if (e < experts) sum_tiles(own, e, y, lanes, all, earlier);
        backend::store_packet(parts, team.rank(), all);
        backend::store_packet(parts + Threads * Width, team.rank(), earlier);
        team.barrier();
        for (int c = team.rank(); c < columns * Width && first + c < experts; c += Threads) {
          std::int32_t total = 0, sum = 0;
          for (int lane = 0; lane < lanes; ++lane) {
            total += parts[lane * columns * Width + c];
            sum += parts[(Threads + lane * columns) * Width + c];
          }
          totals[first + c] = total;
          before[first + c] = sum;
        }
        team.barrier();
      }
    }
  }

  /// Over the tiles y, y + lanes, ...
  KOKKOS_FUNCTION void sum_tiles(std::int64_t own, std::int64_t expert, int y, int lanes,
                                 backend::Packet<std::int32_t, Width>& all,
                                 backend::Packet<std::int32_t, Width>& earlier) const {
    constexpr int tiles_in_flight = 8;
    const int count = static_cast<int>(tiles);
    for (int tile = y; tile < count; tile += tiles_in_flight * lanes) {
      backend::Packet<std::int32_t, Width> in[tiles_in_flight] = {};
      for (int u = 0; u < tiles_in_flight; ++u)
        if (tile + u * lanes < count)
          in[u] = backend::load_packet<Width>(tile_counts + (tile + u * lanes) * experts + expert);
      for (int u = 0; u < tiles_in_flight; ++u) {
        for (int i = 0; i < Width; ++i) {
          all[i] += in[u][i];
          earlier[i] += tile + u * lanes < own ? in[u][i] : 0;
        }
      }
    }
  }

  template <class Team>
  KOKKOS_FUNCTION void add_experts(const Team& team, const std::int32_t* totals, std::int32_t* starts) const {
    if constexpr (impl::is_host_team<Team>) {
      std::int32_t sum = 0;
      for (std::int64_t e = 0; e < experts; ++e) {
        starts[e] = sum;
        sum += totals[e];
      }
    } else if (team.rank() < impl::Warp::lanes) {
      std::int32_t sum = 0;
      for (std::int64_t first = 0; first < experts; first += impl::Warp::lanes) {
        const std::int64_t e = first + team.rank();
        const std::int32_t total = e < experts ? totals[e] : 0, up_to = impl::Warp::inclusive_sum(total);
        if (e < experts) starts[e] = sum + up_to - total;
        sum += impl::Warp::of_last_lane(up_to);
      }
    }
  }

  template <class Team>
  KOKKOS_FUNCTION void describe(const Team& team, const std::int32_t* totals,
                                const std::int32_t* starts) const {
    team.for_each(experts, [=, this](std::int64_t e) {
      begins[e] = static_cast<std::int32_t>(clipped(begin_of(e, starts)));
      ends[e] = static_cast<std::int32_t>(end_of(e, totals[e], starts));
    });
    const auto largest =
        team.template max_over<std::int32_t>(experts, 0, [=](std::int64_t e) { return totals[e]; });
    if (team.rank() != 0) return;
    *needed = capacity > 0 ? static_cast<std::int32_t>(largest * experts)
                           : starts[experts - 1] + totals[experts - 1];
  }

  KOKKOS_FUNCTION void store(std::int64_t pair, std::int32_t expert, std::int64_t place,
                             const std::int32_t* starts) const {
    const std::int64_t row = begin_of(expert, starts) + place;
    const bool fits = capacity > 0 ? place < capacity : row < rows;
    row_of[pair] = fits ? static_cast<std::int32_t>(row) : -1;
    if (fits) source[row] = static_cast<std::int32_t>(pair);
  }

  template <class Team>
  KOKKOS_FUNCTION void place(const Team& team, std::int32_t* by_warp, const std::int32_t* starts,
                             std::int32_t* next) const {
    const std::int64_t begin = pairs.begin_of(team.league_rank()), end = pairs.end_of(team.league_rank());
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t pair = begin; pair < end; ++pair) {
        const std::int32_t expert = pairs.experts[pair];
        if (expert < 0)
          row_of[pair] = -1;
        else
          store(pair, expert, next[expert]++, starts);
      }
    } else {
      const int warp = team.rank() / impl::Warp::lanes;
      team.for_each(warps * experts, [=](std::int64_t i) { by_warp[i] = 0; });
      team.barrier();
      for (std::int64_t first = begin; first < end; first += Threads) {
        const std::int64_t pair = first + team.rank();
        const std::int32_t expert = pair < end ? pairs.experts[pair] : -1;
        const auto matches = impl::Warp::matching(expert);
        const bool is_first = expert >= 0 && matches.earlier == 0;
        if (is_first) by_warp[warp * experts + expert] = matches.all;
        team.barrier();
        std::int32_t earlier = matches.earlier, all = 0;
        if (expert >= 0) {
          for (int other = 0; other < warps; ++other) {
            const std::int32_t count = by_warp[other * experts + expert];
            all += count;
            earlier += other < warp ? count : 0;
          }
          store(pair, expert, next[expert] + earlier, starts);
        } else if (pair < end) {
          row_of[pair] = -1;
        }
        if (first + Threads >= end) continue;
        team.barrier();
        if (is_first) by_warp[warp * experts + expert] = 0;
        if (expert >= 0 && earlier + 1 == all) next[expert] += all;
        team.barrier();
      }
    }
  }

  /// This team's share of the rows: -1 for those without a source.
  template <class Team>
  KOKKOS_FUNCTION void mark_unused(const Team& team, const std::int32_t* totals,
                                   const std::int32_t* starts) const {
    const std::int64_t begin = rows * team.league_rank() / tiles,
                       end = rows * (team.league_rank() + 1) / tiles;
    const std::int64_t routed = starts[experts - 1] + totals[experts - 1];
    team.for_each(end - begin, [=, this](std::int64_t i) {
      const std::int64_t row = begin + i;
      bool used = row < routed;
      if (capacity > 0) {
        const std::int64_t expert = impl::quotient(row, capacity);
        used = expert < experts && row - expert * capacity < totals[expert];
      }
      if (!used) source[row] = -1;
    });
  }
};

}  // namespace

std::int64_t dispatch_workspace_rows(std::int64_t tokens, std::int64_t topk) {
  const std::int64_t tiles = impl::rounded_up_quotient(tokens * topk, tile_pairs_of(tokens * topk));
  return tiles < 1 ? 1 : tiles;
}

template <class Space>
void dispatch(Stream<Space>& stream, Matrix<const std::int32_t, Space> experts, std::int64_t capacity,
              const ExpertRows<Space>& rows, Matrix<std::int32_t, Space> workspace) {
  const std::int64_t tokens = impl::rows_of(experts), topk = impl::columns_of(experts), pairs = tokens * topk;
  const std::int64_t count = impl::rows_of(rows.begins), row_count = impl::rows_of(rows.source);
  impl::require_shape(
      impl::is_matrix(experts, tokens, topk) && impl::is_matrix(rows.row_of, tokens, topk) && count > 0 &&
          impl::is_vector(rows.begins, count) && impl::is_vector(rows.ends, count) &&
          impl::is_vector(rows.source, row_count),
      "dispatch: experts and row_of must be [tokens, topk], begins and ends [experts], source [rows]");
  impl::require_shape(
      capacity >= 0 && row_count >= capacity * count && pairs < INT32_MAX && row_count < INT32_MAX,
      "dispatch: source must have experts * capacity rows at least, and fewer than 2^31");
  const std::int64_t tiles = dispatch_workspace_rows(tokens, topk);
  impl::require_shape(impl::has_rows(workspace, tiles, count),
                      "dispatch: the workspace must be [dispatch_workspace_rows(tokens, topk), experts]");
  const bool lone = !backend::is_host_space<Space> && pairs <= most_lone_pairs && count <= most_lone_experts;
  const Pairs all{experts.data(), pairs, lone ? most_lone_pairs : tile_pairs_of(pairs)};
  const auto place = [&](auto threads, auto width) {
    const PlacePairs<threads, width> functor{all,
                                             lone ? nullptr : workspace.data(),
                                             lone ? 1 : tiles,
                                             count,
                                             capacity,
                                             row_count,
                                             rows.begins.data(),
                                             rows.ends.data(),
                                             rows.source.data(),
                                             rows.row_of.data(),
                                             rows.needed};
    launch(stream, "dispatch/place",
           {backend::read(experts), backend::read(workspace.data(), lone ? 0 : workspace.span()),
            backend::write(rows.begins), backend::write(rows.ends), backend::write(rows.source),
            backend::write(rows.row_of), backend::write(rows.needed, 1)},
           backend::Teams<threads>{functor.tiles, functor.scratch_bytes()}, functor);
  };
  if (lone) return place(impl::WidthConstant<lone_threads>{}, impl::WidthConstant<1>{});
  launch(stream, "dispatch/count", {backend::read(experts), backend::write(workspace)},
         backend::Teams<chunk_pairs>{tiles, count * sizeof(std::int32_t)},
         CountTiles{all, workspace.data(), count});
  impl::with_packet_width<Space>(
      count, [&](auto width) { place(impl::WidthConstant<chunk_pairs>{}, width); }, workspace.data());
}

#define ENCORE_INSTANTIATE(SPACE)                                                                \
  template void dispatch<SPACE>(Stream<SPACE>&, Matrix<const std::int32_t, SPACE>, std::int64_t, \
                                const ExpertRows<SPACE>&, Matrix<std::int32_t, SPACE>);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
