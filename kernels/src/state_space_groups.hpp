// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "state_space_tiles.hpp"

namespace encore::kernels::impl {

/// What the gradients of B and C are made from, beside the operands.
struct GroupTileOperands {
  Columns<const bfloat16> output_gradient;
  Columns<bfloat16> result;
  const bfloat16*
      states;  ///< [batch, chunks, heads, head_dim, state]: for C those that enter the chunks, for B the
               ///< gradients of those that leave them
  const float* scores;     ///< [batch, chunks, groups, width, width]
  float* score_gradients;  ///< the same; set by C's kernel, read by B's
  float*
      own_products;  ///< [heads, rows]: the token's B or C times its part of the gradient; for C with its pairs
  float*
      column_products;  ///< [tiles, heads, rows], for C: pairs summed by their earlier token, by tiles of the later
};

/// A team has 64 tokens of a chunk of a group, and goes through the group's heads:
///   C: gradient_t = sum over heads of exp(decay from the start) y gradient_t state
///                 + sum over s <= t of g[t][s] B_s,  g[t][s] = sum over heads of exp(decay) step_s (y gradient_t . x_s);
///   B: gradient_s = sum over heads of exp(decay to the end) step_s x_s state gradient + sum over t >= s of g[t][s] C_t.
/// C's also sums what each pair of tokens s < t of a head gives through the decays between them: exp(decay) step_s
/// (y gradient_t . x_s) score[t][s]. It counts for t and against s with the very same value, as it does for nothing that
/// does not lie between them. A warp has 16 tokens, and half of the state's columns or of the other tokens.
template <bool OfB, class Units>
struct GroupTiles : MatrixTiles {
  ScanOperands<bfloat16> of;
  GroupTileOperands with;
  std::int64_t tiles;  ///< of a chunk

  static constexpr int stage_elements = narrow_tile + wide_tile + (OfB ? 0 : most_tiles * narrow_tile);
  static constexpr int vector_floats = 2 * most_tiles * tokens + tokens;
  static constexpr int sum_floats = 2 * tokens + (OfB ? 0 : 4 * most_tiles * tokens);
  static constexpr std::size_t scratch_bytes =
      (2 * stage_elements + narrow_tile + wide_tile) * sizeof(bfloat16) +
      (vector_floats + sum_floats) * sizeof(float);

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t item = quotient(team.league_rank(), tiles);
    const int tile = static_cast<int>(team.league_rank() - item * tiles);
    const ChunkPlace at = of.place(item, of.shape.groups);
    if (tile * tokens >= at.count) return;
    Work<Team>{*this, team, at, tile}.run();
  }

  /// What a team does. (Not private: nvcc.)
  template <class Team>
  struct Work {
    const GroupTiles& self;
    const Team& team;
    ChunkPlace at;
    int tile;

    KOKKOS_FUNCTION bfloat16* stage(std::int64_t which) const {
      return team.template scratch<bfloat16>() + which * stage_elements;
    }
    KOKKOS_FUNCTION bfloat16* scaled() const { return stage(2); }
    KOKKOS_FUNCTION bfloat16* own() const { return scaled() + narrow_tile; }  ///< the tile of B or C itself
    KOKKOS_FUNCTION float* decays() const { return reinterpret_cast<float*>(own() + wide_tile); }
    KOKKOS_FUNCTION float* steps() const { return decays() + most_tiles * tokens; }
    KOKKOS_FUNCTION float* factors() const { return steps() + most_tiles * tokens; }
    KOKKOS_FUNCTION float* own_sums() const { return factors() + tokens; }
    KOKKOS_FUNCTION float* column_sums() const { return own_sums() + 2 * tokens; }

    KOKKOS_FUNCTION int lane() const { return team.rank() % 32; }
    KOKKOS_FUNCTION int row() const { return team.rank() / 32 % 4 * 16; }  ///< of the warp's 16 of the tile
    KOKKOS_FUNCTION int half() const { return team.rank() / 128; }
    KOKKOS_FUNCTION std::int64_t first_row() const { return at.row + tile * tokens; }
    KOKKOS_FUNCTION std::int64_t count() const {
      return at.count - tile * tokens;
    }  ///< of rows; may be more than 64

    /// A head's tile of what is scaled, its state, and for C the tiles of x up to this one.
    KOKKOS_FUNCTION void fetch(std::int64_t head, std::int64_t which) const {
      const ScanOperands<bfloat16>& of = self.of;
      const Columns<const bfloat16>& source = OfB ? of.x : self.with.output_gradient;
      const std::int64_t channel = head * head_dim;
      bfloat16* to = stage(which);
      copy_tile<Units, head_dim>(team, to, narrow_stride, source.data + first_row() * source.stride + channel,
                                 source.stride, count());
      copy_tile<Units, state>(team, to + narrow_tile, wide_stride,
                              self.with.states + of.state_begin(at, head), state, head_dim);
      if constexpr (!OfB)
        for (int other = 0; other <= tile; ++other)
          copy_tile<Units, head_dim>(team, to + narrow_tile + wide_tile + other * narrow_tile, narrow_stride,
                                     of.x.data + (at.row + other * tokens) * of.x.stride + channel,
                                     of.x.stride, at.count - other * tokens);
    }

    /// A tile of the chunk's B or C.
    KOKKOS_FUNCTION void fetch_projection(const Columns<const bfloat16>& source, int which,
                                          bfloat16* to) const {
      copy_tile<Units, state>(team, to, wide_stride,
                              source.data + (at.row + which * tokens) * source.stride + at.lane * state,
                              source.stride, at.count - which * tokens);
    }

    KOKKOS_FUNCTION void run() const {
      const std::int64_t heads = self.of.heads_of_group(), first = at.lane * heads;
      float total[8][4] = {};                        // 16 tokens, 64 columns of the state
      float pairs[OfB ? 1 : most_tiles][4][4] = {};  // 16 tokens, 32 earlier ones in each tile
      fetch_projection(OfB ? self.of.b : self.of.c, tile, own());
      fetch(first, 0);
      for (std::int64_t i = 0; i < heads; ++i) {
        Units::wait_for_copies();
        team.barrier();
        if (i + 1 < heads) fetch(first + i + 1, (i + 1) % 2);
        add_head(first + i, stage(i % 2), total, pairs);
      }
      if constexpr (OfB)
        add_later_tokens(total);
      else
        add_earlier_tokens(pairs, total);
      store(total);
    }

    KOKKOS_FUNCTION void add_head(std::int64_t head, const bfloat16* now, float (&total)[8][4],
                                  float (&pairs)[OfB ? 1 : most_tiles][4][4]) const {
      fill_vectors(head);
      team.barrier();
      fill_scaled(now);
      float own_products[2] = {};
      if constexpr (!OfB) add_pairs(now, own_products, pairs);
      team.barrier();
      add_state(now + narrow_tile, own_products, total);
      for (int i = 0; i < 2; ++i) {
        const float sum = Units::sum_of_quad(own_products[i]);
        if (lane() % 4 == 0) own_sums()[half() * tokens + row() + i * 8 + lane() / 4] = sum;
      }
      team.barrier();
      store_products(head);
    }

    /// Of the chunk's tokens up to the tile's last (for B from the chunk's first too: the last is what counts).
    KOKKOS_FUNCTION void fill_vectors(std::int64_t head) const {
      const float* from = self.of.decays_of(at, head);
      const float last = from[at.count - 1];
      for (int t = team.rank(); t < (tile + 1) * tokens; t += threads) {
        const bool exists = t < at.count;
        const float decay = exists ? from[t] : last;
        const float step = exists ? self.of.steps_of(at, head)[t] : 0.0F;
        decays()[t] = decay;
        steps()[t] = step;
        if (t >= tile * tokens)
          factors()[t - tile * tokens] = OfB ? decay_between(last, decay) * step : exponential(decay);
      }
    }

    KOKKOS_FUNCTION void fill_scaled(const bfloat16* values) const {
      for (int item = team.rank(); item < tokens * head_dim / 8; item += threads) {
        const int t = item / (head_dim / 8), packet = item % (head_dim / 8);
        auto eight = backend::load_packet<8>(values + t * narrow_stride, packet);
        for (int i = 0; i < 8; ++i) eight[i] = bfloat16(factors()[t] * static_cast<float>(eight[i]));
        backend::store_packet(scaled() + t * narrow_stride, packet, eight);
      }
    }

    /// The head's part through the state, and its product with the token's own B or C.
    KOKKOS_FUNCTION void add_state(const bfloat16* states, float (&own_products)[2],
                                   float (&total)[8][4]) const {
      float sums[8][4] = {};
      for (int k = 0; k < head_dim; k += 16) {
        std::uint32_t first[4];
        Units::load(first, first_rows(scaled(), narrow_stride, row(), k, lane()));
        for (int block = 0; block < 4; ++block) {
          std::uint32_t second[4];
          Units::load_transposed(
              second, second_rows_transposed(states, wide_stride, k, half() * 64 + block * 16, lane()));
          multiply_pair<Units>(sums[2 * block], sums[2 * block + 1], first, second);
        }
      }
      for (int block = 0; block < 8; ++block)
        for (int i = 0; i < 2; ++i) {
          const int t = row() + i * 8 + lane() / 4, n = half() * 64 + block * 8 + lane() % 4 * 2;
          const auto pair = backend::load_packet<2>(own() + t * wide_stride + n);
          for (int j = 0; j < 2; ++j) {
            const float value = sums[block][2 * i + j];
            own_products[i] += value * static_cast<float>(pair[j]);
            total[block][2 * i + j] += value;
          }
        }
    }

    /// The head's part of g, and its products with the scores.
    KOKKOS_FUNCTION void add_pairs(const bfloat16* now, float (&own_products)[2],
                                   float (&pairs)[OfB ? 1 : most_tiles][4][4]) const {
      std::uint32_t first[4][4];
      for (int k = 0; k < 4; ++k)
        Units::load(first[k], first_rows(now, narrow_stride, row(), k * 16, lane()));
      unrolled(std::make_integer_sequence<int, most_tiles>(), [&](auto other) {
        if (other <= tile)
          add_pairs_with(other, now + narrow_tile + wide_tile + other * narrow_tile, first, own_products,
                         pairs[other]);
      });
    }

    /// Those with the earlier tokens of one tile.
    KOKKOS_FUNCTION void add_pairs_with(int other, const bfloat16* x, const std::uint32_t (&first)[4][4],
                                        float (&own_products)[2], float (&pairs)[4][4]) const {
      const float* scores = self.with.scores + self.of.scores_begin(at, at.lane);
      float sums[4][4] = {};
      for (int k = 0; k < 4; ++k)
        for (int side = 0; side < 2; ++side) {
          std::uint32_t second[4];
          Units::load(second, second_rows(x, narrow_stride, k * 16, half() * 32 + side * 16, lane()));
          multiply_pair<Units>(sums[2 * side], sums[2 * side + 1], first[k], second);
        }
      for (int block = 0; block < 4; ++block)
        for (int j = 0; j < 2; ++j) {
          const int s = other * tokens + half() * 32 + block * 8 + lane() % 4 * 2 + j;  // in the chunk
          float column = 0;
          for (int i = 0; i < 2; ++i) {
            const int t = tile * tokens + row() + i * 8 + lane() / 4;
            if (s > t || t >= at.count) continue;
            const float weight =
                decay_between(decays()[t], decays()[s]) * steps()[s] * sums[block][2 * i + j];
            pairs[block][2 * i + j] += weight;
            if (s == t) continue;
            const float product = weight * scores[t * self.of.width + s];
            own_products[i] += product;
            column += product;
          }
          column = Units::sum_of_rows(column);
          if (lane() / 4 == 0) column_sums()[row() / 16 * most_tiles * tokens + s] = column;
        }
    }

    KOKKOS_FUNCTION void store_products(std::int64_t head) const {
      const std::int64_t rows = self.of.shape.rows();
      for (int t = team.rank(); t < tokens && t < count(); t += threads)
        self.with.own_products[head * rows + first_row() + t] = own_sums()[t] + own_sums()[tokens + t];
      if constexpr (!OfB)
        for (int s = team.rank(); s < (tile + 1) * tokens && s < at.count; s += threads) {
          float total = 0;
          for (int part = 0; part < 4; ++part) total += column_sums()[part * most_tiles * tokens + s];
          self.with.column_products[(tile * self.of.shape.heads + head) * rows + at.row + s] = total;
        }
    }

    /// total += g * B, over the tiles up to this one.
    KOKKOS_FUNCTION void add_earlier_tokens(const float (&pairs)[OfB ? 1 : most_tiles][4][4],
                                            float (&total)[8][4]) const {
      unrolled(std::make_integer_sequence<int, most_tiles>(), [&](auto other) {
        if (other > tile) return;
        team.barrier();
        fetch_projection(self.of.b, other, stage(0));
        store_pairs(other, pairs[other]);
        Units::wait_for_copies();
        team.barrier();
        multiply_by_projection<false>(stage(0), total);
      });
    }

    /// g for the tokens of one tile: to where B's kernel finds it, and rounded to scaled().
    KOKKOS_FUNCTION void store_pairs(int other, const float (&pairs)[4][4]) const {
      const std::int64_t width = self.of.width;
      float* gradients =
          self.with.score_gradients + self.of.scores_begin(at, at.lane) + tile * tokens * width;
      for (int block = 0; block < 4; ++block)
        for (int i = 0; i < 2; ++i) {
          const int t = row() + i * 8 + lane() / 4, s = half() * 32 + block * 8 + lane() % 4 * 2;
          const float left = pairs[block][2 * i], right = pairs[block][2 * i + 1];
          const backend::Packet<bfloat16, 2> pair{{bfloat16(left), bfloat16(right)}};
          backend::store_packet(scaled() + t * narrow_stride + s, 0, pair);
          const int column = other * tokens + s;
          if (t < count() && column < width) gradients[t * width + column] = left;
          if (t < count() && column + 1 < width) gradients[t * width + column + 1] = right;
        }
    }

    /// total += g^T * C, over the tiles from this one on.
    KOKKOS_FUNCTION void add_later_tokens(float (&total)[8][4]) const {
      const float* gradients = self.with.score_gradients + self.of.scores_begin(at, at.lane);
      for (int other = tile; other < self.tiles && other * tokens < at.count; ++other) {
        team.barrier();
        fetch_projection(self.of.c, other, stage(0));
        for (int item = team.rank(); item < tokens * tokens; item += threads) {
          const int t = item / tokens, s = item % tokens;
          const bool exists = other * tokens + t < at.count && s < count();
          const float value =
              exists ? gradients[(other * tokens + t) * self.of.width + tile * tokens + s] : 0.0F;
          scaled()[t * narrow_stride + s] = bfloat16(value);
        }
        Units::wait_for_copies();
        team.barrier();
        multiply_by_projection<true>(stage(0), total);
      }
    }

    /// total += what lies in scaled(), or its transpose, * a tile of B or C.
    template <bool Transposed>
    KOKKOS_FUNCTION void multiply_by_projection(const bfloat16* projection, float (&total)[8][4]) const {
      for (int k = 0; k < tokens; k += 16) {
        std::uint32_t first[4];
        if constexpr (Transposed)
          Units::load_transposed(first, first_rows_transposed(scaled(), narrow_stride, row(), k, lane()));
        else
          Units::load(first, first_rows(scaled(), narrow_stride, row(), k, lane()));
        for (int block = 0; block < 4; ++block) {
          std::uint32_t second[4];
          Units::load_transposed(
              second, second_rows_transposed(projection, wide_stride, k, half() * 64 + block * 16, lane()));
          multiply_pair<Units>(total[2 * block], total[2 * block + 1], first, second);
        }
      }
    }

    KOKKOS_FUNCTION void store(const float (&total)[8][4]) const {
      const Columns<bfloat16>& result = self.with.result;
      for (int block = 0; block < 8; ++block)
        for (int i = 0; i < 2; ++i) {
          const int t = row() + i * 8 + lane() / 4, n = half() * 64 + block * 8 + lane() % 4 * 2;
          const backend::Packet<bfloat16, 2> pair{
              {bfloat16(total[block][2 * i]), bfloat16(total[block][2 * i + 1])}};
          if (t < count())
            backend::store_packet(result.data + (first_row() + t) * result.stride + at.lane * state + n, 0,
                                  pair);
        }
    }
  };
};

}  // namespace encore::kernels::impl
