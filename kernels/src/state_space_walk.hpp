// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "state_space_tiles.hpp"

namespace encore::kernels::impl {

/// What a walk reads and writes beside the operands. Forward: y and the states that enter the chunks. Backward: the
/// gradient of x, that of the states that leave the chunks, and sums over a head's columns, as ScanGradientArrays has
/// them.
struct WalkOperands {
  Columns<const bfloat16> values;  ///< x, or the gradient of y
  Columns<bfloat16> result;
  bfloat16* states;     ///< [batch, chunks, heads, head_dim, state]
  const float* scores;  ///< [batch, chunks, groups, width, width]
  float* input_products;
  float* skip_products;
};

/// A team walks a head of a sequence from tile to tile, with the state in registers; backward, from the last tile to the
/// first, with the state's gradient. The two are alike: with v = x, k = B, q = C
///   y_t = exp(decay from the tile's start) state q_t + sum over s <= t of exp(decay from s) step_s (q_t . k_s) v_s,
///   state = exp(decay of the tile) state + sum over t of exp(decay to the end) step_t v_t k_t^T,
/// and backward the same with v = y's gradient, k = C, q = B, decays to the end instead of from the start and
/// conversely, and s > t. A warp has 16 columns of the head and half of the state's, and so of the sums over them.
template <bool Backward, class Units>
struct TileWalk : MatrixTiles {
  ScanOperands<bfloat16> of;
  WalkOperands with;

  static constexpr int stage_elements = 2 * narrow_tile + 2 * wide_tile;
  static constexpr int vector_floats = 5 * tokens;
  static constexpr int exchange_floats = 16 * threads;
  static constexpr int sum_floats = 2 * 4 * tokens;
  static constexpr std::size_t scratch_bytes = (2 * stage_elements + 2 * narrow_tile) * sizeof(bfloat16) +
                                               (vector_floats + exchange_floats + sum_floats) * sizeof(float);

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t batch = quotient(team.league_rank(), of.shape.heads);
    const std::int64_t head = team.league_rank() - batch * of.shape.heads;
    Walk<Team>{*this, team, batch, head}.run();
  }

  /// Where a team is. (Not private: nvcc.)
  template <class Team>
  struct Walk {
    const TileWalk& self;
    const Team& team;
    std::int64_t batch, head;

    KOKKOS_FUNCTION bfloat16* stage(int which) const {
      return team.template scratch<bfloat16>() + which * stage_elements;
    }
    KOKKOS_FUNCTION bfloat16* scaled() const { return stage(2); }
    KOKKOS_FUNCTION bfloat16* weights() const { return scaled() + narrow_tile; }
    KOKKOS_FUNCTION float* vectors() const { return reinterpret_cast<float*>(weights() + narrow_tile); }
    KOKKOS_FUNCTION float* exchange() const { return vectors() + vector_floats; }
    KOKKOS_FUNCTION float* column_sums() const { return exchange() + exchange_floats; }

    /// A tile of the sequence and the chunk that it is in.
    struct Place {
      std::int64_t row;    ///< of all sequences
      std::int64_t count;  ///< of rows
      std::int64_t chunk;
      std::int64_t in_chunk;  ///< its first row there
      bool first, last;       ///< of the chunk
    };

    KOKKOS_FUNCTION Place place(std::int64_t tile) const {
      const StateSpaceShape& shape = self.of.shape;
      const std::int64_t begin = tile * tokens, left = shape.tokens - begin;
      Place at{};
      at.row = batch * shape.tokens + begin;
      at.count = left < tokens ? left : tokens;
      at.chunk = quotient(begin, shape.chunk);
      at.in_chunk = begin - at.chunk * shape.chunk;
      at.first = at.in_chunk == 0;
      at.last = left <= tokens || at.in_chunk + tokens == shape.chunk;
      return at;
    }

    KOKKOS_FUNCTION void fetch(std::int64_t tile, int which) const {
      const Place at = place(tile);
      const ScanOperands<bfloat16>& of = self.of;
      const Columns<const bfloat16>&k = Backward ? of.c : of.b, &q = Backward ? of.b : of.c;
      const std::int64_t group = of.group_of(head) * state, channel = head * head_dim;
      bfloat16* to = stage(which);
      copy_tile<Units, head_dim>(team, to, narrow_stride,
                                 self.with.values.data + at.row * self.with.values.stride + channel,
                                 self.with.values.stride, at.count);
      if constexpr (Backward)
        copy_tile<Units, head_dim>(team, to + narrow_tile, narrow_stride,
                                   of.x.data + at.row * of.x.stride + channel, of.x.stride, at.count);
      copy_tile<Units, state>(team, to + 2 * narrow_tile, wide_stride, k.data + at.row * k.stride + group,
                              k.stride, at.count);
      copy_tile<Units, state>(team, to + 2 * narrow_tile + wide_tile, wide_stride,
                              q.data + at.row * q.stride + group, q.stride, at.count);
    }

    KOKKOS_FUNCTION void run() const {
      const std::int64_t tiles = rounded_up_quotient(self.of.shape.tokens, tokens);
      float sums[8][4] = {};  // The state: 16 rows, 64 columns.
      fetch(Backward ? tiles - 1 : 0, 0);
      for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t tile = Backward ? tiles - 1 - i : i;
        Units::wait_for_copies();
        team.barrier();
        if (i + 1 < tiles) fetch(Backward ? tile - 1 : tile + 1, static_cast<int>((i + 1) % 2));
        step(place(tile), stage(static_cast<int>(i % 2)), sums);
      }
    }

    KOKKOS_FUNCTION void step(const Place& at, const bfloat16* now, float (&sums)[8][4]) const {
      const bfloat16* values = now;
      const bfloat16* keys = now + 2 * narrow_tile;
      const bfloat16* queries = keys + wide_tile;
      if (Backward ? at.last : at.first) store_state(at, sums);
      const float whole = fill_vectors(at);
      team.barrier();
      float outputs[4][2][4] = {};
      read_state(queries, sums, outputs);
      fill_weights(at);
      fill_scaled(values);
      for (int block = 0; block < 8; ++block)
        for (int r = 0; r < 4; ++r) sums[block][r] *= whole;
      team.barrier();
      add_pairs(values, outputs);
      add_to_state(keys, sums);
      give_half(outputs);
      team.barrier();
      finish(at, now, outputs);
    }

    KOKKOS_FUNCTION int lane() const { return team.rank() % 32; }
    KOKKOS_FUNCTION int column() const {
      return team.rank() / 32 % 4 * 16;
    }                                                               ///< of the warp's 16 of the head
    KOKKOS_FUNCTION int half() const { return team.rank() / 128; }  ///< of the state's columns

    KOKKOS_FUNCTION void store_state(const Place& at, const float (&sums)[8][4]) const {
      const ScanOperands<bfloat16>& of = self.of;
      bfloat16* to =
          self.with.states +
          (((batch * of.chunks + at.chunk) * of.shape.heads + head) * head_dim + column() + lane() / 4) *
              state +
          half() * 64 + lane() % 4 * 2;
      for (int block = 0; block < 8; ++block)
        for (int i = 0; i < 2; ++i) {
          const backend::Packet<bfloat16, 2> pair{
              {bfloat16(sums[block][2 * i]), bfloat16(sums[block][2 * i + 1])}};
          backend::store_packet(to + i * 8 * state + block * 8, 0, pair);
        }
    }

    /// Per token: decay sums, steps, the factors of what it reads from the state and of what it adds to it, and its
    /// score with itself. Returns the decay of the whole tile.
    KOKKOS_FUNCTION float fill_vectors(const Place& at) const {
      const ScanOperands<bfloat16>& of = self.of;
      const float* decays = of.decays + head * of.shape.rows() + at.row;
      const float before = at.first ? 0.0F : decays[-1], last = decays[at.count - 1];
      float* to = vectors();
      const int t = team.rank();
      if (t < tokens) {
        const bool exists = t < at.count;
        const float decay = exists ? decays[t] : last;
        const float step = exists ? of.steps[head * of.shape.rows() + at.row + t] : 0.0F;
        const float from_start = decay_between(decay, before), to_end = decay_between(last, decay);
        to[t] = decay;
        to[tokens + t] = step;
        to[2 * tokens + t] = Backward ? to_end : from_start;
        to[3 * tokens + t] = Backward ? from_start : to_end * step;
        if constexpr (Backward) to[4 * tokens + t] = exists ? scores_of(at)[t * (of.width + 1)] : 0.0F;
      }
      return decay_between(last, before);
    }

    /// Scores of the tile's tokens with each other.
    KOKKOS_FUNCTION const float* scores_of(const Place& at) const {
      const ScanOperands<bfloat16>& of = self.of;
      const std::int64_t matrix = (batch * of.chunks + at.chunk) * of.shape.groups + of.group_of(head);
      return self.with.scores + matrix * of.width * of.width + at.in_chunk * (of.width + 1);
    }

    /// outputs[t][p] = factor_t * sum over the half's columns of q_t[n] * state[p][n]. The state's sums have the layout
    /// of the second operand.
    KOKKOS_FUNCTION void read_state(const bfloat16* queries, const float (&sums)[8][4],
                                    float (&outputs)[4][2][4]) const {
      for (int k = 0; k < 4; ++k) {
        const float(&upper)[4] = sums[2 * k];
        const float(&lower)[4] = sums[2 * k + 1];
        const std::uint32_t second[4] = {Units::pack(upper[0], upper[1]), Units::pack(lower[0], lower[1]),
                                         Units::pack(upper[2], upper[3]), Units::pack(lower[2], lower[3])};
        for (int block = 0; block < 4; ++block) {
          std::uint32_t first[4];
          Units::load(first, first_rows(queries, wide_stride, block * 16, half() * 64 + k * 16, lane()));
          multiply_pair<Units>(outputs[block][0], outputs[block][1], first, second);
        }
      }
      for (int block = 0; block < 4; ++block)
        for (int i = 0; i < 2; ++i) {
          const float factor = vectors()[2 * tokens + block * 16 + lane() / 4 + i * 8];
          for (int side = 0; side < 2; ++side) {
            outputs[block][side][2 * i] *= factor;
            outputs[block][side][2 * i + 1] *= factor;
          }
        }
    }

    /// weights[t][s] = exp(decay from s to t) * score, forward times step_s, of s <= t; backward of s < t.
    KOKKOS_FUNCTION void fill_weights(const Place& at) const {
      constexpr int columns = 16;
      const int t = team.rank() / 4, begin = team.rank() % 4 * columns;
      if (begin / 16 > t / 16) return;  // Such blocks are not read.
      const float* scores = scores_of(at) + t * self.of.width;
      const float* decays = vectors();
      const float* steps = decays + tokens;
      bfloat16* to = weights() + t * narrow_stride;
      for (int s = begin; s < begin + columns; s += 8) {
        backend::Packet<bfloat16, 8> packet;
        for (int i = 0; i < 8; ++i) {
          const bool seen = s + i < t + (Backward ? 0 : 1) && t < at.count;
          float weight = seen ? decay_between(decays[t], decays[s + i]) * scores[s + i] : 0.0F;
          if constexpr (!Backward) weight *= steps[s + i];
          packet[i] = bfloat16(weight);
        }
        backend::store_packet(to + s, 0, packet);
      }
    }

    /// scaled[t][p] = factor_t * v_t[p]: what is added to the state.
    KOKKOS_FUNCTION void fill_scaled(const bfloat16* values) const {
      for (int item = team.rank(); item < tokens * head_dim / 8; item += threads) {
        const int t = item / (head_dim / 8), packet = item % (head_dim / 8);
        const float factor = vectors()[3 * tokens + t];
        auto eight = backend::load_packet<8>(values + t * narrow_stride, packet);
        for (int i = 0; i < 8; ++i) eight[i] = bfloat16(factor * static_cast<float>(eight[i]));
        backend::store_packet(scaled() + t * narrow_stride, packet, eight);
      }
    }

    /// outputs += weights * v over the half's tokens; backward with the weights transposed.
    KOKKOS_FUNCTION void add_pairs(const bfloat16* values, float (&outputs)[4][2][4]) const {
      for (int i = 0; i < 2; ++i) {
        const int k = half() * 2 + i;
        std::uint32_t second[4];
        Units::load_transposed(second,
                               second_rows_transposed(values, narrow_stride, k * 16, column(), lane()));
        for (int block = 0; block < 4; ++block) {
          if (Backward ? k < block : k > block) continue;
          std::uint32_t first[4];
          if constexpr (Backward)
            Units::load_transposed(
                first, first_rows_transposed(weights(), narrow_stride, block * 16, k * 16, lane()));
          else
            Units::load(first, first_rows(weights(), narrow_stride, block * 16, k * 16, lane()));
          multiply_pair<Units>(outputs[block][0], outputs[block][1], first, second);
        }
      }
    }

    /// state[p][n] += sum over t of scaled[t][p] * k_t[n].
    KOKKOS_FUNCTION void add_to_state(const bfloat16* keys, float (&sums)[8][4]) const {
      for (int k = 0; k < tokens; k += 16) {
        std::uint32_t first[4];
        Units::load_transposed(first, first_rows_transposed(scaled(), narrow_stride, column(), k, lane()));
        for (int block = 0; block < 4; ++block) {
          std::uint32_t second[4];
          Units::load_transposed(
              second, second_rows_transposed(keys, wide_stride, k, half() * 64 + block * 16, lane()));
          multiply_pair<Units>(sums[2 * block], sums[2 * block + 1], first, second);
        }
      }
    }

    /// The two halves of the warps have parts of the same sums: each gives the other half of the tokens away.
    KOKKOS_FUNCTION void give_half(const float (&outputs)[4][2][4]) const {
      for (int block = 0; block < 2; ++block)
        for (int side = 0; side < 2; ++side)
          for (int r = 0; r < 4; ++r) {
            const float given = half() == 0 ? outputs[block + 2][side][r] : outputs[block][side][r];
            exchange()[((block * 2 + side) * 4 + r) * threads + team.rank()] = given;
          }
    }

    KOKKOS_FUNCTION void finish(const Place& at, const bfloat16* now, const float (&outputs)[4][2][4]) const {
      const int other = team.rank() ^ 128;
      const float skip = static_cast<float>(self.of.skip[head]);
      const Columns<bfloat16>& result = self.with.result;
      const float* steps = vectors() + tokens;
      for (int block = 0; block < 2; ++block)
        for (int i = 0; i < 2; ++i) {
          const int t = (half() * 2 + block) * 16 + i * 8 + lane() / 4;
          float input_product = 0, skip_product = 0;
          for (int side = 0; side < 2; ++side) {
            const int p = column() + side * 8 + lane() % 4 * 2;
            const auto v = backend::load_packet<2>(now + t * narrow_stride + p);
            backend::Packet<bfloat16, 2> x{}, packet;
            if constexpr (Backward) x = backend::load_packet<2>(now + narrow_tile + t * narrow_stride + p);
            for (int j = 0; j < 2; ++j) {
              const int r = 2 * i + j;
              const float own = half() == 0 ? outputs[block][side][r] : outputs[block + 2][side][r];
              const float sum = own + exchange()[((block * 2 + side) * 4 + r) * threads + other];
              if constexpr (Backward) {
                const float own_factor = steps[t] * vectors()[4 * tokens + t] + skip;
                packet[j] = bfloat16(steps[t] * sum + own_factor * static_cast<float>(v[j]));
                input_product += sum * static_cast<float>(x[j]);
                skip_product += static_cast<float>(v[j]) * static_cast<float>(x[j]);
              } else {
                packet[j] = bfloat16(sum + skip * static_cast<float>(v[j]));
              }
            }
            if (t < at.count)
              backend::store_packet(result.data + (at.row + t) * result.stride + head * head_dim + p, 0,
                                    packet);
          }
          if constexpr (Backward) {
            input_product = Units::sum_of_quad(input_product);
            skip_product = Units::sum_of_quad(skip_product);
            if (lane() % 4 == 0) {
              column_sums()[column() / 16 * tokens + t] = input_product;
              column_sums()[(4 + column() / 16) * tokens + t] = skip_product;
            }
          }
        }
      if constexpr (Backward) {
        team.barrier();
        const int t = team.rank() % tokens, which = team.rank() / tokens;
        if (which < 2 && t < at.count) {
          const float* parts = column_sums() + which * 4 * tokens + t;
          const float total = parts[0] + parts[tokens] + parts[2 * tokens] + parts[3 * tokens];
          float* to = which == 0 ? self.with.input_products : self.with.skip_products;
          to[head * self.of.shape.rows() + at.row + t] = total;
        }
      }
    }
  };
};

}  // namespace encore::kernels::impl
