// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/dispatch.hpp>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

/// Pairs are cut into tiles of whole chunks. A chunk has as many pairs as a GPU's team has threads.
constexpr int chunk_pairs = 256;
constexpr std::int64_t most_tiles = 128;

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
/// the pairs of its tile their rows.
struct PlacePairs {
  Pairs pairs;
  const std::int32_t* tile_counts;
  std::int64_t tiles, experts, capacity, rows;
  std::int32_t* begins;
  std::int32_t* ends;
  std::int32_t* source;
  std::int32_t* row_of;
  std::int32_t* needed;

  std::size_t scratch_bytes() const { return (2 * chunk_pairs + 3 * experts) * sizeof(std::int32_t); }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    // The chunk comes first: it is read in packets.
    auto* chunk = team.template scratch<std::int32_t>();
    std::int32_t* totals = chunk + 2 * chunk_pairs;  ///< pairs of each expert
    std::int32_t* starts = totals + experts;         ///< pairs of the experts before it
    std::int32_t* next = starts + experts;  ///< row, within its expert, of the tile's next pair of each
    add_tiles(team, chunk, totals, next);
    add_experts(team, totals, starts);
    team.barrier();
    if (team.league_rank() == 0) describe(team, totals, starts);
    place(team, chunk, starts, next);
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
      while (columns < Team::size() && columns < experts) columns *= 2;
      const int lanes = Team::size() / columns, x = team.rank() % columns, y = team.rank() / columns;
      for (std::int64_t first = 0; first < experts; first += columns) {
        const std::int64_t e = first + x;
        std::int32_t all = 0, earlier = 0;
        if (e < experts) {
          for (std::int64_t tile = y; tile < tiles; tile += lanes) {
            const std::int32_t count = tile_counts[tile * experts + e];
            all += count;
            earlier += tile < own ? count : 0;
          }
        }
        parts[team.rank()] = all;
        parts[Team::size() + team.rank()] = earlier;
        team.barrier();
        if (y == 0 && e < experts) {
          for (int lane = 1; lane < lanes; ++lane) {
            all += parts[lane * columns + x];
            earlier += parts[Team::size() + lane * columns + x];
          }
          totals[e] = all;
          before[e] = earlier;
        }
        team.barrier();
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
    } else {
      // All threads read the same entry at a time, which costs a warp one access.
      for (std::int64_t e = team.rank(); e < experts; e += Team::size()) {
        std::int32_t sum = 0;
        for (std::int64_t other = 0; other < experts; ++other) sum += other < e ? totals[other] : 0;
        starts[e] = sum;
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
  KOKKOS_FUNCTION void place(const Team& team, std::int32_t* chunk, const std::int32_t* starts,
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
      for (std::int64_t first = begin; first < end; first += chunk_pairs) {
        const std::int64_t pair = first + team.rank();
        const std::int32_t expert = pair < end ? pairs.experts[pair] : -1;
        chunk[team.rank()] = expert;
        team.barrier();
        std::int32_t earlier = 0, all = 0;
        for (int p = 0; p < chunk_pairs / 4; ++p) {
          const auto other = backend::load_packet<4>(chunk, p);
          for (int i = 0; i < 4; ++i) {
            all += other[i] == expert ? 1 : 0;
            earlier += other[i] == expert && 4 * p + i < team.rank() ? 1 : 0;
          }
        }
        if (expert >= 0)
          store(pair, expert, next[expert] + earlier, starts);
        else if (pair < end)
          row_of[pair] = -1;
        team.barrier();
        if (expert >= 0 && earlier + 1 == all) next[expert] += all;
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
  const Pairs all{experts.data(), pairs, tile_pairs_of(pairs)};
  launch(stream, "dispatch/count", {backend::read(experts), backend::write(workspace)},
         backend::Teams<chunk_pairs>{tiles, count * sizeof(std::int32_t)},
         CountTiles{all, workspace.data(), count});
  const PlacePairs place{all,
                         workspace.data(),
                         tiles,
                         count,
                         capacity,
                         row_count,
                         rows.begins.data(),
                         rows.ends.data(),
                         rows.source.data(),
                         rows.row_of.data(),
                         rows.needed};
  launch(stream, "dispatch/place",
         {backend::read(experts), backend::read(workspace), backend::write(rows.begins),
          backend::write(rows.ends), backend::write(rows.source), backend::write(rows.row_of),
          backend::write(rows.needed, 1)},
         backend::Teams<chunk_pairs>{tiles, place.scratch_bytes()}, place);
}

#define ENCORE_INSTANTIATE(SPACE)                                                                \
  template void dispatch<SPACE>(Stream<SPACE>&, Matrix<const std::int32_t, SPACE>, std::int64_t, \
                                const ExpertRows<SPACE>&, Matrix<std::int32_t, SPACE>);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
