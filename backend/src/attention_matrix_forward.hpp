// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_matrix_tiles.hpp"

#include <Kokkos_MathematicalFunctions.hpp>

namespace encore::backend::impl {

/// A team computes a block of one head's queries: online softmax over stages of keys (Dao, "FlashAttention-2", 2023,
/// algorithm 1), products on matrix units. RowWarps x KeyWarps warps: a warp has 16 * RowTiles queries and, of each
/// stage, KeyTile keys; what the warps of the same queries have is merged at the end. Many warps on the keys make a
/// block of few queries quick, where there are too few blocks for a GPU.
template <int HeadDim, int RowTiles, int RowWarps, int KeyWarps, int KeyTile, class Units>
struct MatrixAttentionForward {
  static constexpr int threads = 32 * RowWarps * KeyWarps;
  static constexpr int queries = 16 * RowTiles * RowWarps;
  static constexpr int keys = KeyWarps * KeyTile;  ///< of a stage
  static constexpr int row = matrix_row<HeadDim>;
  static constexpr std::size_t tile_bytes = (queries + 4 * keys) * row * sizeof(bfloat16);
  static constexpr std::size_t merge_bytes = KeyWarps * queries * (row + 2) * sizeof(float);
  static constexpr std::size_t scratch_bytes = tile_bytes > merge_bytes ? tile_bytes : merge_bytes;
  static_assert(KeyTile % 16 == 0 && HeadDim % 16 == 0);

  AttentionForward<bfloat16> of;
  AttentionRotation<float> rotation;  ///< of queries and keys, or nothing

  static std::int64_t teams(const AttentionShape& shape) {
    return shape.batch * shape.heads * ((shape.tokens + queries - 1) / queries);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int heads = static_cast<int>(of.shape.heads), rows = static_cast<int>(of.shape.batch) * heads;
    const int blocks = (static_cast<int>(of.shape.tokens) + queries - 1) / queries;
    const int rank = static_cast<int>(team.league_rank());
    // Later queries see more keys: they go first.
    const int block = blocks - 1 - rank / rows, batch = rank % rows / heads, head = rank % rows % heads;
    Block<Team>{*this, team, batch, head, block * queries}.run();
  }

  /// Where a team is. (Not private: nvcc.)
  template <class Team>
  struct Block {
    const MatrixAttentionForward& self;
    const Team& team;
    int batch, head, query_begin;

    struct State {
      float sums[RowTiles][HeadDim / 8][4];  ///< of weighted values
      float largest[RowTiles][2];            ///< score, of rows g and g + 8
      float total[RowTiles][2];              ///< of weights; each lane of a quad has a part
    };

    KOKKOS_FUNCTION bfloat16* query_tile() const { return team.template scratch<bfloat16>(); }
    KOKKOS_FUNCTION bfloat16* stage(int which) const {
      return query_tile() + (queries + which * 2 * keys) * row;
    }
    KOKKOS_FUNCTION int lane() const { return team.rank() % 32; }
    KOKKOS_FUNCTION int row_begin() const { return team.rank() / 32 % RowWarps * 16 * RowTiles; }
    KOKKOS_FUNCTION int key_warp() const { return team.rank() / (32 * RowWarps); }
    KOKKOS_FUNCTION int tokens() const { return static_cast<int>(self.of.shape.tokens); }
    KOKKOS_FUNCTION float scale() const { return self.of.shape.scale * log2_of_e; }

    using Copies = TokenCopies<Units, HeadDim, threads>;

    KOKKOS_FUNCTION void run() const {
      const AttentionForward<bfloat16>& of = self.of;
      const int window = static_cast<int>(window_of(of.shape));
      const int end = query_begin + queries < tokens() ? query_begin + queries : tokens();
      const int kv_head = head / static_cast<int>(of.shape.heads / of.shape.kv_heads);
      int key_begin = static_cast<int>(first_key(of.shape, query_begin, keys));
      const auto key = Copies::of(of.key, batch, kv_head, team.rank());
      const auto value = Copies::of(of.value, batch, kv_head, team.rank());
      const auto fetch = [&](int token, int which) {
        key.template start<keys>(stage(which), token, tokens());
        value.template start<keys>(stage(which) + keys * row, token, tokens());
      };
      Copies::of(of.query, batch, head, team.rank())
          .template start<queries>(query_tile(), query_begin, tokens());
      fetch(key_begin, 0);
      State state = first_state();
      Units::wait_for_copies();
      team.barrier();
      const AttentionRotation<float>& rotation = self.rotation;
      const bool turns = rotation.cosine != nullptr;
      const auto turn_keys = [&](int which) {
        turn_tokens<keys, HeadDim>(team, threads, rotation, stage(which), key_begin, end);
      };
      if (turns) {
        turn_tokens<queries, HeadDim>(team, threads, rotation, query_tile(), query_begin, tokens());
        turn_keys(0);
        team.barrier();
      }
      std::uint32_t query[RowTiles][HeadDim / 16][4];
      ENCORE_UNROLL
      for (int t = 0; t < RowTiles; ++t) ENCORE_UNROLL
      for (int k = 0; k < HeadDim / 16; ++k)
        Units::load(query[t][k], first_rows(query_tile(), row, row_begin() + t * 16, k * 16, lane()));
      const int first = key_begin;
      for (int which = 0; key_begin < end; which ^= 1, key_begin += keys) {
        if (key_begin + keys < end) fetch(key_begin + keys, which ^ 1);
        if (turns && key_begin > first) {
          turn_keys(which);
          team.barrier();
        }
        step(query, key_begin + key_warp() * KeyTile, window, stage(which) + key_warp() * KeyTile * row,
             state);
        Units::wait_for_copies();
        team.barrier();
      }
      merge(state);
      team.barrier();
      finish();
    }

    /// A sink is a score that comes first.
    KOKKOS_FUNCTION State first_state() const {
      State state{};
      const bool has_sink = self.of.shape.sinks && key_warp() == 0;
      const float largest = has_sink ? self.of.sinks[head] / self.of.shape.scale : -INFINITY;
      for (int t = 0; t < RowTiles; ++t)
        for (int i = 0; i < 2; ++i) {
          state.largest[t][i] = largest;
          state.total[t][i] = has_sink && lane() % 4 == 0 ? 1.0F : 0.0F;
        }
      return state;
    }

    /// The warp's keys of a stage.
    KOKKOS_FUNCTION void step(const std::uint32_t (&query)[RowTiles][HeadDim / 16][4], int key, int window,
                              const bfloat16* key_tile, State& state) const {
      const int first_query = query_begin + row_begin();
      const TileSight sight = TileSight::of(first_query, 16 * RowTiles, key, KeyTile, window);
      if (sight.none) return;
      float scores[RowTiles][KeyTile / 8][4] = {};
      ENCORE_UNROLL
      for (int k = 0; k < HeadDim / 16; ++k) ENCORE_UNROLL
      for (int n = 0; n < KeyTile / 16; ++n) {
        std::uint32_t second[4];
        Units::load(second, second_rows(key_tile, row, k * 16, n * 16, lane()));
        ENCORE_UNROLL
        for (int t = 0; t < RowTiles; ++t)
          multiply_pair<Units>(scores[t][2 * n], scores[t][2 * n + 1], query[t][k], second);
      }
      if (!sight.all) hide(first_query, key, window, scores);
      ENCORE_UNROLL
      for (int t = 0; t < RowTiles; ++t) ENCORE_UNROLL
      for (int i = 0; i < 2; ++i) weigh(scores[t], i, state.sums[t], state.largest[t][i], state.total[t][i]);
      const bfloat16* value_tile = key_tile + keys * row;
      ENCORE_UNROLL
      for (int k = 0; k < KeyTile / 16; ++k) {
        std::uint32_t weights[RowTiles][4];
        ENCORE_UNROLL
        for (int t = 0; t < RowTiles; ++t)
          as_first<Units>(weights[t], scores[t][2 * k], scores[t][2 * k + 1]);
        ENCORE_UNROLL
        for (int n = 0; n < HeadDim / 16; ++n) {
          std::uint32_t second[4];
          Units::load_transposed(second, second_rows_transposed(value_tile, row, k * 16, n * 16, lane()));
          ENCORE_UNROLL
          for (int t = 0; t < RowTiles; ++t)
            multiply_pair<Units>(state.sums[t][2 * n], state.sums[t][2 * n + 1], weights[t], second);
        }
      }
    }

    /// Keys past the last token come after every query: they need no test of their own.
    KOKKOS_FUNCTION void hide(int first_query, int key, int window,
                              float (&scores)[RowTiles][KeyTile / 8][4]) const {
      ENCORE_UNROLL
      for (int t = 0; t < RowTiles; ++t) ENCORE_UNROLL
      for (int n = 0; n < KeyTile / 8; ++n) ENCORE_UNROLL
      for (int i = 0; i < 4; ++i)
        if (!sees(first_query + t * 16 + lane() / 4 + i / 2 * 8, key + n * 8 + lane() % 4 * 2 + i % 2,
                  window))
          scores[t][n][i] = -INFINITY;
    }

    /// Makes weights of the scores of row g + 8 * i.
    KOKKOS_FUNCTION void weigh(float (&scores)[KeyTile / 8][4], int i, float (&sums)[HeadDim / 8][4],
                               float& largest, float& total) const {
      float now = largest;
      ENCORE_UNROLL
      for (int n = 0; n < KeyTile / 8; ++n)
        now = Kokkos::fmax(now, Kokkos::fmax(scores[n][2 * i], scores[n][2 * i + 1]));
      now = Units::max_of_quad(now);
      // Of the first keys a query may see none: what is subtracted from -infinity must be finite.
      const float shift = now == -INFINITY ? 0.0F : now * scale();
      const float rescale = Units::exp2(largest * scale() - shift);
      largest = now;
      float sum = 0;
      ENCORE_UNROLL
      for (int n = 0; n < KeyTile / 8; ++n) ENCORE_UNROLL
      for (int j = 2 * i; j < 2 * i + 2; ++j) {
        scores[n][j] = Units::exp2(scores[n][j] * scale() - shift);
        sum += scores[n][j];
      }
      total = total * rescale + sum;
      ENCORE_UNROLL
      for (int n = 0; n < HeadDim / 8; ++n) ENCORE_UNROLL
      for (int j = 2 * i; j < 2 * i + 2; ++j) sums[n][j] *= rescale;
    }

    KOKKOS_FUNCTION float* merged() const { return team.template scratch<float>(); }
    /// Of each row: the largest score and the weights' total, [KeyWarps, queries, 2].
    KOKKOS_FUNCTION float* statistics() const { return merged() + KeyWarps * queries * row; }

    KOKKOS_FUNCTION void merge(const State& state) const {
      for (int t = 0; t < RowTiles; ++t) {
        const int begin = key_warp() * queries + row_begin() + t * 16;
        put_sums<HeadDim>(merged() + begin * row, state.sums[t], lane());
        for (int i = 0; i < 2; ++i) {
          const float total = Units::sum_of_quad(state.total[t][i]);
          if (lane() % 4 == 0)
            store_packet(statistics(), begin + i * 8 + lane() / 4,
                         Packet<float, 2>{{state.largest[t][i], total}});
        }
      }
    }

    KOKKOS_FUNCTION void finish() const {
      constexpr int packets = HeadDim / 8;
      for (int item = team.rank(); item < queries * packets; item += threads) {
        const int at = item / packets, packet = item % packets, query = query_begin + at;
        if (query >= tokens()) break;
        float largest = -INFINITY, total = 0, sums[8] = {};
        ENCORE_UNROLL
        for (int w = 0; w < KeyWarps; ++w)
          largest = Kokkos::fmax(largest, statistics()[2 * (w * queries + at)]);
        ENCORE_UNROLL
        for (int w = 0; w < KeyWarps; ++w) {
          const auto part = load_packet<2>(statistics(), w * queries + at);
          const float factor = Units::exp2((part[0] - largest) * scale());
          total += part[1] * factor;
          const float* from = merged() + (w * queries + at) * row + packet * 8;
          const auto left = load_packet<4>(from), right = load_packet<4>(from + 4);
          ENCORE_UNROLL
          for (int i = 0; i < 4; ++i) {
            sums[i] += left[i] * factor;
            sums[4 + i] += right[i] * factor;
          }
        }
        Packet<bfloat16, 8> result;
        for (int i = 0; i < 8; ++i) result[i] = bfloat16(sums[i] / total);
        store_packet(head_of(self.of.output, batch, head, query), packet, result);
        if (packet == 0)
          self.of.log_sum_exp[(static_cast<std::int64_t>(batch) * self.of.shape.heads + head) * tokens() +
                              query] = largest * self.of.shape.scale + Kokkos::log(total);
      }
    }
  };
};

}  // namespace encore::backend::impl
