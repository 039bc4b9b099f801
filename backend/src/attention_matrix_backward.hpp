// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_matrix_tiles.hpp"

namespace encore::backend::impl {

KOKKOS_INLINE_FUNCTION float dot_of_packets(const Packet<bfloat16, 8>& a, const Packet<bfloat16, 8>& b) {
  float dot = 0;
  ENCORE_UNROLL
  for (int i = 0; i < 8; ++i) dot += static_cast<float>(a[i]) * static_cast<float>(b[i]);
  return dot;
}

/// Puts each query's logarithm of the sum of exponentials, to base 2, and the sum over d of output * its gradient into
/// row_dots [batch, heads, padded_tokens, 2]; infinity and 0 past the last token, so that nothing is weighted with them.
template <int HeadDim, class Units>
struct DescribeQueries {
  static constexpr int threads = 256;
  static constexpr int packets = HeadDim / 8;

  AttentionBackward<bfloat16> of;

  static std::int64_t teams(const AttentionShape& shape) {
    return (shape.batch * shape.heads * padded_tokens(shape.tokens) * packets + threads - 1) / threads;
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int tokens = static_cast<int>(of.shape.tokens), padded = static_cast<int>(padded_tokens(tokens));
    const int heads = static_cast<int>(of.shape.heads), lanes = static_cast<int>(of.shape.batch) * heads;
    const int item = static_cast<int>(team.league_rank()) * threads + team.rank();
    const int row = item / packets, packet = item % packets, token = row % padded, lane = row / padded;
    const bool exists = lane < lanes && token < tokens;
    float dot = 0;
    if (exists)
      dot = dot_of_packets(
          load_packet<8>(head_of(of.output, lane / heads, lane % heads, token), packet),
          load_packet<8>(head_of(of.output_gradient, lane / heads, lane % heads, token), packet));
    dot = Units::template sum_of_neighbours<packets>(dot);
    if (packet != 0 || lane >= lanes) return;
    const float logarithm = exists ? of.log_sum_exp[lane * tokens + token] * log2_of_e : INFINITY;
    store_packet(of.row_dots, row, Packet<float, 2>{{logarithm, dot}});
  }
};

/// All three gradients in one launch, products on matrix units (Dao, "FlashAttention-2", 2023, algorithm 2, without its
/// atomic additions). A team owns a block of keys and values of a key head, and goes over the queries that see them, of
/// all heads of its group; or it owns a block of queries and goes over the keys that they see. Both compute the scores
/// again. The two are alike: with own rows a, b and rows c, d that come by in stages,
///   keys: a = K, b = V, c = Q, d = dO;  queries: a = Q, b = dO, c = K, d = V;
///   weights P = exp(scale * a c^T - log_sum_exp), P' = P * (b d^T - rows' dots),
///   first result (dK or dQ) = scale * P' c, second (dV) = P d.
/// RowWarps x StageWarps warps: a warp has 16 own rows and, of each stage, Columns others, of which it takes some at a
/// time; what the warps of the same rows have is added at the end, in order.
/// Describes: the rows' dots (sums of output times its gradient) are formed here; else DescribeQueries has formed them,
/// which is less work where many blocks of keys are to meet the same queries.
template <int HeadDim, int RowWarps, int StageWarps, int Columns, bool Describes, class Units>
struct MatrixAttentionBackward {
  static constexpr int head_dim = HeadDim;
  static constexpr bool describes = Describes;
  static constexpr int threads = 32 * RowWarps * StageWarps;
  static constexpr int rows = 16 * RowWarps;
  static constexpr int stage_rows = StageWarps * Columns;
  static constexpr int row = matrix_row<HeadDim>;
  /// Two tiles of its own; two stages of queries, gradients of the output, and output if this describes. A team of
  /// queries then has its own rows' output where there is none of a stage.
  static constexpr int stage_elements = (Describes ? 3 : 2) * stage_rows * row;
  static constexpr std::size_t tile_bytes = (2 * rows * row + 2 * stage_elements) * sizeof(bfloat16);
  static constexpr std::size_t merge_bytes = StageWarps * rows * row * sizeof(float);
  static constexpr std::size_t vectors_begin = tile_bytes > merge_bytes ? tile_bytes : merge_bytes;
  static constexpr std::size_t scratch_bytes = vectors_begin + 4 * stage_rows * sizeof(float);
  /// Whether own rows stay in registers.
  static constexpr bool keeps_own = HeadDim <= 64;
  static constexpr int columns = HeadDim > 64 ? 16 : Columns < 32 ? Columns : 32;  ///< at a time
  static_assert(Columns % columns == 0 && HeadDim % 16 == 0 && rows <= stage_rows);

  AttentionBackward<bfloat16> of;
  AttentionRotation<float> rotation;  ///< of queries and keys

  static std::int64_t teams(const AttentionShape& shape) {
    return shape.batch * (shape.heads + shape.kv_heads) * ((shape.tokens + rows - 1) / rows);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int heads = static_cast<int>(of.shape.heads), kv_heads = static_cast<int>(of.shape.kv_heads);
    const int key_items = static_cast<int>(of.shape.batch) * kv_heads;
    const int items = key_items + static_cast<int>(of.shape.batch) * heads;
    const int blocks = (static_cast<int>(of.shape.tokens) + rows - 1) / rows;
    const int rank = static_cast<int>(team.league_rank());
    // Early keys are seen by more queries, late queries see more keys: they go first.
    const int turn = rank / items, item = rank % items;
    if (item < key_items) {
      Block<true, Team>{*this, team, item / kv_heads, item % kv_heads, turn * rows}.run();
    } else {
      const int which = item - key_items;
      Block<false, Team>{*this, team, which / heads, which % heads, (blocks - 1 - turn) * rows}.run();
    }
  }

  /// Where a team is: a head of keys, or one of queries. (Not private: nvcc.)
  template <bool OfKeys, class Team>
  struct Block {
    const MatrixAttentionBackward& self;
    const Team& team;
    int batch, head, begin;

    struct State {
      float first[HeadDim / 8][4];
      float second[OfKeys ? HeadDim / 8 : 1][4];
      std::uint32_t own[keeps_own ? 2 : 1][keeps_own ? HeadDim / 16 : 1][4];
      float log_sum_exp[2], dots[2];  ///< of own queries
    };

    KOKKOS_FUNCTION bfloat16* own_tile(int which) const {
      return team.template scratch<bfloat16>() + which * rows * row;
    }
    KOKKOS_FUNCTION bfloat16* stage(int which) const { return own_tile(2) + which * stage_elements; }
    /// Of a stage's queries: the logarithm of the sum of exponentials, to base 2 once `describe` is done, and the dot.
    KOKKOS_FUNCTION float* vectors(int which) const {
      return reinterpret_cast<float*>(team.template scratch<std::byte>() + vectors_begin) +
             which * 2 * stage_rows;
    }
    KOKKOS_FUNCTION int lane() const { return team.rank() % 32; }
    KOKKOS_FUNCTION int row_begin() const { return team.rank() / 32 % RowWarps * 16; }
    KOKKOS_FUNCTION int stage_warp() const { return team.rank() / (32 * RowWarps); }
    KOKKOS_FUNCTION int tokens() const { return static_cast<int>(self.of.shape.tokens); }
    KOKKOS_FUNCTION int window() const { return static_cast<int>(window_of(self.of.shape)); }
    KOKKOS_FUNCTION int group() const {
      return static_cast<int>(self.of.shape.heads / self.of.shape.kv_heads);
    }
    using Copies = TokenCopies<Units, HeadDim, threads>;
    KOKKOS_FUNCTION Copies copies(const HeadsOperand<const bfloat16>& operand, int of_head) const {
      return Copies::of(operand, batch, of_head, team.rank());
    }

    KOKKOS_FUNCTION void fetch_own() const {
      const AttentionBackward<bfloat16>& of = self.of;
      copies(OfKeys ? of.key : of.query, head).template start<rows>(own_tile(0), begin, tokens());
      copies(OfKeys ? of.value : of.output_gradient, head).template start<rows>(own_tile(1), begin, tokens());
      if constexpr (!OfKeys) {
        if constexpr (Describes)
          copies(of.output, head).template start<rows>(stage(0) + 2 * stage_rows * row, begin, tokens());
        fetch_vectors<rows>(head, begin, 0);
      }
    }

    template <int Rows>
    KOKKOS_FUNCTION void fetch_vectors(int query_head, int query, int which) const {
      const std::int64_t lane = static_cast<std::int64_t>(batch) * self.of.shape.heads + query_head;
      if constexpr (Describes) {
        const float* from = self.of.log_sum_exp + lane * tokens();
        for (int i = team.rank(); i < Rows; i += threads) {
          const bool exists = query + i < tokens();
          Units::copy_async(vectors(which) + 2 * i, from + (exists ? query + i : 0), exists);
        }
      } else {
        const int padded = static_cast<int>(padded_tokens(tokens()));
        const float* from = self.of.row_dots + 2 * lane * padded;
        for (int i = team.rank(); i < 2 * Rows; i += threads) {
          const bool exists = 2 * query + i < 2 * padded;
          Units::copy_async(vectors(which) + i, from + (exists ? 2 * query + i : 0), exists);
        }
      }
    }

    /// Dots of queries' outputs and their gradients; logarithms to base 2.
    template <int Rows>
    KOKKOS_FUNCTION void describe(const bfloat16* output, const bfloat16* output_gradient,
                                  float* vector) const {
      constexpr int packets = HeadDim / 8;
      static_assert(Rows * packets % 32 == 0);
      for (int item = team.rank(); item < Rows * packets; item += threads) {
        const int at = item / packets, packet = item % packets;
        const float dot = Units::template sum_of_neighbours<packets>(dot_of_packets(
            load_packet<8>(output + at * row, packet), load_packet<8>(output_gradient + at * row, packet)));
        if (packet == 0) store_packet(vector, at, Packet<float, 2>{{vector[2 * at] * log2_of_e, dot}});
      }
    }

    KOKKOS_FUNCTION void run() const {
      const AttentionShape& shape = self.of.shape;
      const int first = OfKeys ? begin : static_cast<int>(first_key(shape, begin, stage_rows));
      const int end = OfKeys ? static_cast<int>(query_end(shape, begin + rows))
                             : (begin + rows < tokens() ? begin + rows : tokens());
      const int first_head = OfKeys ? head * group() : head / group();
      const int heads_end = first_head + (OfKeys ? group() : 1);
      const AttentionBackward<bfloat16>& of = self.of;
      Copies c = copies(OfKeys ? of.query : of.key, first_head);
      Copies d = copies(OfKeys ? of.output_gradient : of.value, first_head);
      Copies output = copies(of.output, OfKeys ? first_head : 0);
      const auto fetch = [&](int query_head, int at, int which) {
        c.template start<stage_rows>(stage(which), at, tokens());
        d.template start<stage_rows>(stage(which) + stage_rows * row, at, tokens());
        if constexpr (OfKeys) {
          if constexpr (Describes)
            output.template start<stage_rows>(stage(which) + 2 * stage_rows * row, at, tokens());
          fetch_vectors<stage_rows>(query_head, at, which);
        }
      };
      fetch_own();
      fetch(first_head, first, 0);
      State state{};
      Units::wait_for_copies();
      team.barrier();
      const AttentionRotation<float>& rotation = self.rotation;
      const bool turns = rotation.cosine != nullptr && rotation.of_inputs;
      const auto turn_others = [&](int at, int which) {
        turn_tokens<stage_rows, HeadDim>(team, threads, rotation, stage(which), at, end);
      };
      if (turns) {
        turn_tokens<rows, HeadDim>(team, threads, rotation, own_tile(0), begin, tokens());
        turn_others(first, 0);
        team.barrier();
      }
      begin_own(state);
      int other_head = first_head, token = first;
      for (int which = 0; other_head < heads_end; which ^= 1) {
        int next_head = other_head, next = token + stage_rows;
        if (next >= end) {
          next = first;
          ++next_head;
          c.next_head();
          d.next_head();
          output.next_head();
        }
        if (next_head < heads_end) fetch(next_head, next, which ^ 1);
        const bool turns_now = turns && (token > first || other_head > first_head);
        if (turns_now) turn_others(token, which);
        if constexpr (OfKeys && Describes) {
          const bfloat16* gradient = stage(which) + stage_rows * row;
          describe<stage_rows>(gradient + stage_rows * row, gradient, vectors(which));
        }
        if (turns_now || (OfKeys && Describes)) team.barrier();
        for (int part = 0; part < Columns; part += columns) step(token, which, part, state);
        Units::wait_for_copies();
        team.barrier();
        other_head = next_head;
        token = next;
      }
      add_and_store(state.first, OfKeys ? of.key_gradient : of.query_gradient, shape.scale, rotation);
      if constexpr (OfKeys) add_and_store(state.second, of.value_gradient, 1.0F, {});
    }

    KOKKOS_FUNCTION void begin_own(State& state) const {
      if constexpr (!OfKeys) {
        if constexpr (Describes) {
          describe<rows>(stage(0) + 2 * stage_rows * row, own_tile(1), vectors(0));
          team.barrier();
        }
        for (int i = 0; i < 2; ++i) {
          const auto vector = load_packet<2>(vectors(0), row_begin() + lane() / 4 + i * 8);
          state.log_sum_exp[i] = vector[0];
          state.dots[i] = vector[1];
        }
      }
      if constexpr (keeps_own) {
        ENCORE_UNROLL
        for (int which = 0; which < 2; ++which) {
          ENCORE_UNROLL
          for (int k = 0; k < HeadDim / 16; ++k) load_own(state.own[which][k], which, k);
        }
      }
    }

    KOKKOS_FUNCTION void load_own(std::uint32_t (&own)[4], int which, int k) const {
      Units::load(own, first_rows(own_tile(which), row, row_begin(), k * 16, lane()));
    }

    KOKKOS_FUNCTION void step(int token, int which, int part, State& state) const {
      const int others = stage_warp() * Columns + part, other = token + others, own = begin + row_begin();
      const TileSight sight = OfKeys ? TileSight::of(other, columns, own, 16, window())
                                     : TileSight::of(own, 16, other, columns, window());
      if (sight.none) return;
      const bfloat16* first_tile = stage(which) + others * row;
      const bfloat16* second_tile = first_tile + stage_rows * row;
      float weights[columns / 8][4] = {}, gradients[columns / 8][4] = {};
      ENCORE_UNROLL
      for (int k = 0; k < HeadDim / 16; ++k) {
        std::uint32_t own_first[4], own_second[4];
        if constexpr (!keeps_own) {
          load_own(own_first, 0, k);
          load_own(own_second, 1, k);
        } else {
          ENCORE_UNROLL
          for (int i = 0; i < 4; ++i) {
            own_first[i] = state.own[0][k][i];
            own_second[i] = state.own[1][k][i];
          }
        }
        ENCORE_UNROLL
        for (int n = 0; n < columns / 16; ++n) {
          std::uint32_t operand[4];
          Units::load(operand, second_rows(first_tile, row, k * 16, n * 16, lane()));
          multiply_pair<Units>(weights[2 * n], weights[2 * n + 1], own_first, operand);
          Units::load(operand, second_rows(second_tile, row, k * 16, n * 16, lane()));
          multiply_pair<Units>(gradients[2 * n], gradients[2 * n + 1], own_second, operand);
        }
      }
      weigh(vectors(which) + 2 * others, state, weights, gradients);
      if (!sight.all) hide(own, other, weights, gradients);
      ENCORE_UNROLL
      for (int k = 0; k < columns / 16; ++k) {
        std::uint32_t weight[4], gradient[4];
        as_first<Units>(weight, weights[2 * k], weights[2 * k + 1]);
        as_first<Units>(gradient, gradients[2 * k], gradients[2 * k + 1]);
        ENCORE_UNROLL
        for (int n = 0; n < HeadDim / 16; ++n) {
          std::uint32_t operand[4];
          Units::load_transposed(operand, second_rows_transposed(first_tile, row, k * 16, n * 16, lane()));
          multiply_pair<Units>(state.first[2 * n], state.first[2 * n + 1], gradient, operand);
          if constexpr (OfKeys) {
            Units::load_transposed(operand, second_rows_transposed(second_tile, row, k * 16, n * 16, lane()));
            multiply_pair<Units>(state.second[2 * n], state.second[2 * n + 1], weight, operand);
          }
        }
      }
    }

    /// Scores become weights, and the weights' gradients those of the scores.
    KOKKOS_FUNCTION void weigh(const float* stage_vectors, const State& state,
                               float (&weights)[columns / 8][4], float (&gradients)[columns / 8][4]) const {
      const float scale = self.of.shape.scale * log2_of_e;
      ENCORE_UNROLL
      for (int n = 0; n < columns / 8; ++n) {
        Packet<float, 4> two{};  // Of a lane's two columns: logarithm and dot.
        if constexpr (OfKeys) two = load_packet<4>(stage_vectors + n * 16, lane() % 4);
        ENCORE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float logarithm = OfKeys ? two[i % 2 * 2] : state.log_sum_exp[i / 2];
          const float dot = OfKeys ? two[i % 2 * 2 + 1] : state.dots[i / 2];
          weights[n][i] = Units::exp2(weights[n][i] * scale - logarithm);
          gradients[n][i] = weights[n][i] * (gradients[n][i] - dot);
        }
      }
    }

    /// Queries past the last token have outputs' gradients of zero, and keys past it come after every query.
    KOKKOS_FUNCTION void hide(int own, int other, float (&weights)[columns / 8][4],
                              float (&gradients)[columns / 8][4]) const {
      ENCORE_UNROLL
      for (int n = 0; n < columns / 8; ++n) ENCORE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int own_row = own + lane() / 4 + i / 2 * 8, column = other + n * 8 + lane() % 4 * 2 + i % 2;
        if (OfKeys ? sees(column, own_row, window()) : sees(own_row, column, window())) continue;
        weights[n][i] = 0;
        gradients[n][i] = 0;
      }
    }

    /// Items are two packets of a row, half a row apart, which may be pairs of a rotation.
    KOKKOS_FUNCTION void add_and_store(const float (&sums)[HeadDim / 8][4], const HeadsOperand<bfloat16>& to,
                                       float factor, const AttentionRotation<float>& turned) const {
      auto* merged = team.template scratch<float>();
      put_sums<HeadDim>(merged + (stage_warp() * rows + row_begin()) * row, sums, lane());
      team.barrier();
      constexpr int packets = HeadDim / 16;
      for (int item = team.rank(); item < rows * packets; item += threads) {
        const int at = item / packets, packet = item % packets, token = begin + at;
        if (token >= tokens()) break;
        Packet<bfloat16, 8> left = total(merged + at * row + packet * 8, factor);
        Packet<bfloat16, 8> right = total(merged + at * row + HeadDim / 2 + packet * 8, factor);
        if (turned.cosine != nullptr) turn_packets(turned, -1.0F, HeadDim, token, packet, left, right);
        bfloat16* result = head_of(to, batch, head, token);
        store_packet(result, packet, left);
        store_packet(result + HeadDim / 2, packet, right);
      }
      team.barrier();
    }

    /// What the warps of the same rows have.
    KOKKOS_FUNCTION Packet<bfloat16, 8> total(const float* from, float factor) const {
      float sums[8] = {};
      ENCORE_UNROLL
      for (int w = 0; w < StageWarps; ++w) {
        const auto first = load_packet<4>(from + w * rows * row),
                   last = load_packet<4>(from + w * rows * row + 4);
        ENCORE_UNROLL
        for (int i = 0; i < 4; ++i) {
          sums[i] += first[i];
          sums[4 + i] += last[i];
        }
      }
      Packet<bfloat16, 8> result;
      for (int i = 0; i < 8; ++i) result[i] = bfloat16(sums[i] * factor);
      return result;
    }
  };
};

}  // namespace encore::backend::impl
