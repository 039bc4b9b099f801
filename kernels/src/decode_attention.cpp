// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/decode_attention.hpp>

#include "lanes.hpp"
#include "mathematics.hpp"
#include "row_packets.hpp"

namespace encore::kernels {

namespace {

/// Heads that share their keys and are computed by one team.
constexpr std::int64_t heads_of_team = 8;
constexpr std::int64_t tile = 64;  ///< keys between two looks at the largest score
constexpr int threads = 128;
constexpr std::int64_t most_head_dim = 256;

/// How the work is cut: each query's heads into blocks, the keys that it sees into stretches.
struct Cut {
  std::int64_t group, blocks, splits;
};

template <class Space>
Cut cut_of(const DecodeAttentionShape& shape, std::int64_t rows) {
  // Enough teams to fill a GPU, or the cores of a host, but none with fewer keys than pay for combining.
  constexpr std::int64_t teams = backend::is_host_space<Space> ? 64 : 528;
  constexpr std::int64_t least_keys = backend::is_host_space<Space> ? 256 : 64;
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::int64_t blocks = impl::rounded_up_quotient(group, heads_of_team);
  const std::int64_t wanted =
      impl::rounded_up_quotient(teams, std::max<std::int64_t>(rows * shape.kv_heads * blocks, 1));
  const std::int64_t seen = shape.window > 0 ? std::min(shape.window, shape.capacity) : shape.capacity;
  const std::int64_t most = std::max<std::int64_t>(seen / least_keys, 1);
  return {group, blocks, std::min({wanted, most, std::int64_t{32}})};
}

/// Of each (row, head, stretch): the largest score, the sum of exponentials relative to it, 0 where there are no keys,
/// and the values weighted by them.
template <class A>
struct Partials {
  A* data;
  std::int64_t heads, splits, head_dim;

  KOKKOS_FUNCTION A* at(std::int64_t row, std::int64_t head, std::int64_t split) const {
    return data + ((row * heads + head) * splits + split) * (head_dim + 2);
  }
};

template <int Width, class T>
struct DecodeAttention {
  using A = Accumulator<T>;

  const std::int32_t* first;
  const std::int32_t* count;
  const T* queries;
  const T* keys;
  const T* values;
  Partials<A> partials;
  DecodeAttentionShape shape;
  Cut cut;
  std::int64_t step_tokens;

  static std::size_t scratch_bytes(std::int64_t head_dim) {
    const std::int64_t sums = std::max(heads_of_team * head_dim, std::int64_t{threads} * Width);
    return static_cast<std::size_t>(heads_of_team * (head_dim + tile + 3) + sums) * sizeof(A);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const Place place(*this, team.league_rank());
    if (place.begin >= place.end) {
      team.for_each(place.heads, [&](std::int64_t h) { place.partial(*this, h)[1] = A(0); });
      return;
    }
    const std::int64_t head_dim = shape.head_dim;
    const Scratch scratch(team.template scratch<A>(), head_dim);
    const A scale = static_cast<A>(shape.scale);
    const T* const query = queries + (place.row * shape.heads + place.head) * head_dim;
    team.for_each(place.heads * head_dim,
                  [=](std::int64_t i) { scratch.query[i] = scale * static_cast<A>(query[i]); });
    team.for_each(place.heads, [=](std::int64_t h) {
      scratch.largest[h] = A(-HUGE_VAL);
      scratch.sum[h] = A(0);
    });
    const Shares shares(place.heads * (head_dim / Width), Team::size());
    team.for_each(shares.copies * shares.items * Width, [=](std::int64_t i) { scratch.sums[i] = A(0); });
    team.barrier();
    for (std::int64_t begin = place.begin; begin < place.end; begin += tile) {
      const std::int64_t left = place.end - begin, count_of_tile = left < tile ? left : tile;
      const std::int64_t offset =
          ((place.sequence * shape.capacity + begin) * shape.kv_heads + place.kv_head) * head_dim;
      score(team, scratch, place.heads, keys + offset, count_of_tile);
      team.barrier();
      weigh(team, scratch, place.heads, count_of_tile);
      team.barrier();
      add_values(team, scratch, shares, place.heads, values + offset, count_of_tile);
      team.barrier();
    }
    team.for_each(place.heads * head_dim, [&](std::int64_t i) {
      A sum = A(0);
      for (std::int64_t copy = 0; copy < shares.copies; ++copy)
        sum += scratch.sums[copy * shares.items * Width + i];
      const std::int64_t h = impl::quotient(i, head_dim);
      place.partial(*this, h)[2 + i - h * head_dim] = sum;
    });
    team.for_each(place.heads, [&](std::int64_t h) {
      place.partial(*this, h)[0] = scratch.largest[h];
      place.partial(*this, h)[1] = scratch.sum[h];
    });
  }

  struct Place {
    std::int64_t row, sequence, kv_head, head, heads, split, begin, end;

    KOKKOS_FUNCTION Place(const DecodeAttention& of, std::int64_t item) {
      std::int64_t rest = impl::quotient(item, of.cut.splits);
      split = item - rest * of.cut.splits;
      const std::int64_t block_item = impl::quotient(rest, of.cut.blocks);
      const std::int64_t block = rest - block_item * of.cut.blocks;
      row = impl::quotient(block_item, of.shape.kv_heads);
      kv_head = block_item - row * of.shape.kv_heads;
      head = kv_head * of.cut.group + block * heads_of_team;
      const std::int64_t left = of.cut.group - block * heads_of_team;
      heads = left < heads_of_team ? left : heads_of_team;
      sequence = impl::quotient(row, of.step_tokens);
      const std::int64_t t = row - sequence * of.step_tokens, position = of.first[sequence] + t;
      begin = end = 0;
      if (t >= of.count[sequence] || position >= of.shape.capacity) return;
      const std::int64_t window = of.shape.window;
      const std::int64_t from = window > 0 && position >= window ? position + 1 - window : 0;
      const std::int64_t seen = position + 1 - from;
      const std::int64_t length =
          impl::rounded_up_quotient(impl::quotient(seen + of.cut.splits - 1, of.cut.splits), 16) * 16;
      begin = from + split * length;
      end = begin + length < position + 1 ? begin + length : position + 1;
    }
    KOKKOS_FUNCTION A* partial(const DecodeAttention& of, std::int64_t h) const {
      return of.partials.at(row, head + h, split);
    }
  };

  struct Scratch {
    A *query, *scores, *sums, *largest, *sum, *factor;

    KOKKOS_FUNCTION Scratch(A* memory, std::int64_t head_dim)
        : query(memory),
          scores(query + heads_of_team * head_dim),
          sums(scores + heads_of_team * (tile + 3)),
          largest(scores + heads_of_team * tile),
          sum(largest + heads_of_team),
          factor(sum + heads_of_team) {}
  };

  /// Packets of the weighted values, dealt out to the threads; where there are fewer than threads, several copies of
  /// each, which take every so many keys.
  struct Shares {
    std::int64_t items, copies;

    KOKKOS_FUNCTION Shares(std::int64_t packets, std::int64_t size)
        : items(packets), copies(impl::quotient(size, packets)) {
      if (copies < 1) copies = 1;
    }
  };

 private:
  template <class Team>
  KOKKOS_FUNCTION void score(const Team& team, const Scratch& scratch, std::int64_t heads, const T* from,
                             std::int64_t keys_of_tile) const {
    const std::int64_t head_dim = shape.head_dim, stride = shape.cached();
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t key = 0; key < keys_of_tile; ++key)
        for (std::int64_t h = 0; h < heads; ++h) {
          const A* const query = scratch.query + h * head_dim;
          const T* const of_key = from + key * stride;
          scratch.scores[h * tile + key] = team.template sum_over<A>(
              head_dim, [=](std::int64_t d) { return query[d] * static_cast<A>(of_key[d]); });
        }
    } else {
      const impl::LaneGroups<8, Team> lanes(team);
      const std::int64_t packets = head_dim / Width;
      for (std::int64_t key = lanes.group; key < keys_of_tile; key += lanes.groups) {
        A partial[heads_of_team] = {};
        for (std::int64_t packet = lanes.lane; packet < packets; packet += lanes.lanes) {
          const auto of_key = backend::load_packet<Width>(from + key * stride, packet);
          for (int h = 0; h < heads_of_team; ++h) {
            if (h >= heads) continue;
            for (int i = 0; i < Width; ++i)
              partial[h] += scratch.query[h * head_dim + packet * Width + i] * static_cast<A>(of_key[i]);
          }
        }
        for (int h = 0; h < heads_of_team; ++h) {
          if (h >= heads) continue;
          const A sum = lanes.sum(partial[h]);
          if (lanes.lane == 0) scratch.scores[h * tile + key] = sum;
        }
      }
    }
  }

  /// Scores become weights relative to the largest score so far.
  template <class Team>
  KOKKOS_FUNCTION void weigh(const Team& team, const Scratch& scratch, std::int64_t heads,
                             std::int64_t keys_of_tile) const {
    const impl::LaneGroups<16, Team> lanes(team);
    for (std::int64_t h = lanes.group; h < heads; h += lanes.groups) {
      A* const scores = scratch.scores + h * tile;
      const A before = scratch.largest[h];
      A largest = before;
      for (std::int64_t key = lanes.lane; key < keys_of_tile; key += lanes.lanes)
        largest = scores[key] > largest ? scores[key] : largest;
      largest = lanes.max(largest);
      A sum = A(0);
      for (std::int64_t key = lanes.lane; key < keys_of_tile; key += lanes.lanes) {
        scores[key] = impl::exponential(scores[key] - largest);
        sum += scores[key];
      }
      sum = lanes.sum(sum);
      if (lanes.lane == 0) {
        const A factor = scratch.sum[h] > 0 ? impl::exponential(before - largest) : A(0);
        scratch.factor[h] = factor;
        scratch.sum[h] = scratch.sum[h] * factor + sum;
        scratch.largest[h] = largest;
      }
    }
  }

  template <class Team>
  KOKKOS_FUNCTION void add_values(const Team& team, const Scratch& scratch, const Shares& shares,
                                  std::int64_t heads, const T* from, std::int64_t keys_of_tile) const {
    const std::int64_t head_dim = shape.head_dim, stride = shape.cached();
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t h = 0; h < heads; ++h) {
        A* const sums = scratch.sums + h * head_dim;
        const A factor = scratch.factor[h];
        team.for_each(head_dim, [=](std::int64_t d) { sums[d] *= factor; });
        for (std::int64_t key = 0; key < keys_of_tile; ++key) {
          const A weight = scratch.scores[h * tile + key];
          const T* const of_key = from + key * stride;
          team.for_each(head_dim, [=](std::int64_t d) { sums[d] += weight * static_cast<A>(of_key[d]); });
        }
      }
    } else {
      team.for_each(shares.copies * shares.items, [&](std::int64_t share) {
        const std::int64_t copy = impl::quotient(share, shares.items), item = share - copy * shares.items;
        const std::int64_t h = impl::quotient(item, head_dim / Width), packet = item - h * (head_dim / Width);
        A sum[Width];
        A* const sums = scratch.sums + share * Width;
        for (int i = 0; i < Width; ++i) sum[i] = sums[i] * scratch.factor[h];
        for (std::int64_t key = copy; key < keys_of_tile; key += shares.copies) {
          const A weight = scratch.scores[h * tile + key];
          const auto of_key = backend::load_packet<Width>(from + key * stride, packet);
          for (int i = 0; i < Width; ++i) sum[i] += weight * static_cast<A>(of_key[i]);
        }
        for (int i = 0; i < Width; ++i) sums[i] = sum[i];
      });
    }
  }
};

/// One row is a query's head.
template <class T>
struct CombineStretches {
  using A = Accumulator<T>;

  Partials<A> partials;
  const T* sinks;
  T* output;

  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t d) const {
    const std::int64_t query = impl::quotient(row, partials.heads), head = row - query * partials.heads;
    A largest = sinks != nullptr ? static_cast<A>(sinks[head]) : A(-HUGE_VAL);
    for (std::int64_t split = 0; split < partials.splits; ++split) {
      const A* const part = partials.at(query, head, split);
      if (part[1] > 0 && part[0] > largest) largest = part[0];
    }
    A sum = A(0), total = A(0);
    bool some = false;
    for (std::int64_t split = 0; split < partials.splits; ++split) {
      const A* const part = partials.at(query, head, split);
      if (part[1] == 0) continue;  // not `> 0`: what is not a number must stay visible
      some = true;
      const A weight = impl::exponential(part[0] - largest);
      sum += weight * part[2 + d];
      total += weight * part[1];
    }
    if (sinks != nullptr) total += impl::exponential(static_cast<A>(sinks[head]) - largest);
    output[row * partials.head_dim + d] = static_cast<T>(some ? sum / total : A(0));
  }
};

}  // namespace

template <class Space>
std::int64_t decode_attention_workspace(const DecodeAttentionShape& shape, std::int64_t rows) {
  return rows * shape.heads * cut_of<Space>(shape, rows).splits * (shape.head_dim + 2);
}

template <class Space, class T>
void decode_attention(Stream<Space>& stream, const DecodeRows<Space>& rows, const DecodeAttentionShape& shape,
                      Matrix<const T, Space> queries, Matrix<const T, Space> keys,
                      Matrix<const T, Space> values, Vector<const T, Space> sinks,
                      Vector<Accumulator<T>, Space> workspace, Matrix<T, Space> output) {
  const std::int64_t count = rows.rows(), places = rows.sequences() * shape.capacity;
  impl::require_shape(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim > 0 &&
                          shape.head_dim <= most_head_dim,
                      "decode_attention: kv_heads must divide heads, and head_dim be at most 256");
  impl::require_shape(
      impl::is_vector(rows.count, rows.sequences()) &&
          impl::is_matrix(queries, count, shape.heads * shape.head_dim) &&
          impl::is_matrix(keys, places, shape.cached()) && impl::is_matrix(values, places, shape.cached()) &&
          (impl::is_empty(sinks) || impl::is_vector(sinks, shape.heads)) &&
          impl::is_vector(workspace, decode_attention_workspace<Space>(shape, count)) &&
          impl::is_matrix(output, count, shape.heads * shape.head_dim),
      "decode_attention: queries and output must be [rows, heads * head_dim], the caches [sequences * "
      "capacity, kv_heads * head_dim], sinks [heads] and the workspace as long as told");
  const Cut cut = cut_of<Space>(shape, count);
  const Partials<Accumulator<T>> partials{workspace.data(), shape.heads, cut.splits, shape.head_dim};
  impl::with_packet_width<Space>(
      shape.head_dim,
      [&](auto width) {
        using Functor = DecodeAttention<width, T>;
        launch(stream, "decode/attention",
               {backend::read(rows.first), backend::read(rows.count), backend::read(queries),
                backend::read(keys), backend::read(values), backend::write(workspace)},
               backend::Teams<threads>{count * shape.kv_heads * cut.blocks * cut.splits,
                                       Functor::scratch_bytes(shape.head_dim)},
               Functor{rows.first.data(), rows.count.data(), queries.data(), keys.data(), values.data(),
                       partials, shape, cut, rows.tokens});
      },
      keys.data(), values.data());
  impl::launch_row_packets(stream, "decode/attention_combine",
                           {backend::read(workspace), backend::read(sinks), backend::write(output)},
                           count * shape.heads, shape.head_dim,
                           CombineStretches<T>{partials, sinks.data(), output.data()});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                         \
  template void decode_attention<SPACE, T>(                                                                  \
      Stream<SPACE>&, const DecodeRows<SPACE>&, const DecodeAttentionShape&, Matrix<const T, SPACE>,         \
      Matrix<const T, SPACE>, Matrix<const T, SPACE>, Vector<const T, SPACE>, Vector<Accumulator<T>, SPACE>, \
      Matrix<T, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE
#define ENCORE_INSTANTIATE(SPACE) \
  template std::int64_t decode_attention_workspace<SPACE>(const DecodeAttentionShape&, std::int64_t);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
