// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "state_space_tiles.hpp"

namespace encore::kernels::impl {

/// What the workspace of the backward pass holds, one array behind the other.
template <class A>
struct ScanGradientArrays {
  A* scores;           ///< [batch, chunks, groups, width, width]
  A* score_gradients;  ///< the same, summed over the heads of a group
  A* state_gradients;  ///< [batch, chunks, heads, head_dim, state], of the states that leave the chunks
  A* decay_gradients;  ///< [heads, rows], of the decay sums, without what comes through the states that leave
  A* input_products;   ///< [heads, rows], x . gradient of step * x through later tokens
  A* skip_products;    ///< [heads, rows], x . gradient of y
  A* carries;          ///< [batch, chunks, heads], states that leave . their gradients
  /// With matrix tiles: what to take off the decay gradients, by tiles of later tokens [tiles, heads, rows]; and
  /// [heads, rows], what a token gives the state that leaves its chunk, which its predecessors' decays do not touch.
  A* column_products = nullptr;
  A* leaving_products = nullptr;
  A* parameter_sums[3];  ///< [batch * chunks, heads] each: step bias, decay log, skip

  static std::int64_t elements(const StateSpaceShape& shape) {
    const std::int64_t width = shape.chunk < shape.tokens ? shape.chunk : shape.tokens;
    const std::int64_t chunks = shape.batch * shape.chunks();
    return 2 * chunks * shape.groups * width * width + chunks * shape.heads * shape.head_dim * shape.state +
           (3 + tile_arrays(shape)) * shape.heads * shape.rows() + 4 * chunks * shape.heads;
  }
  static std::int64_t tile_arrays(const StateSpaceShape& shape) {
    return fits_matrix_tiles(shape) ? shape.chunk / MatrixTiles::tokens + 1 : 0;
  }

  template <class T>
  ScanGradientArrays(const ScanOperands<T>& of, A* memory, bool matrix_tiles) {
    const auto take = [&](std::int64_t count) {
      A* begin = memory;
      memory += count;
      return begin;
    };
    const std::int64_t score_count = of.chunk_items() * of.shape.groups * of.width * of.width;
    state_gradients = take(of.saved_states());
    scores = take(score_count);
    score_gradients = take(score_count);
    decay_gradients = take(of.token_items());
    input_products = take(of.token_items());
    skip_products = take(of.token_items());
    carries = take(of.chunk_items() * of.shape.heads);
    if (matrix_tiles) {
      column_products = take((tile_arrays(of.shape) - 1) * of.token_items());
      leaving_products = take(of.token_items());
    }
    for (A*& sums : parameter_sums) sums = take(of.chunk_items() * of.shape.heads);
  }
};

/// The gradient that a chunk's outputs give the state that enters it: sum over t of exp(decay from the start)
/// y gradient_t C_t^T. Nothing enters the first chunk.
template <class T>
struct ChunkStateGradients : ProductTileShape {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  Columns<const T> output_gradient;
  A* result;
  std::int64_t row_tiles, column_tiles;

  ChunkStateGradients(const ScanOperands<T>& operands, Columns<const T> gradient, A* state_gradients)
      : of(operands),
        output_gradient(gradient),
        result(state_gradients),
        row_tiles(rounded_up_quotient(operands.shape.head_dim, edge)),
        column_tiles(rounded_up_quotient(operands.shape.state, edge)) {}

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t tiles = row_tiles * column_tiles;
    const std::int64_t item = quotient(team.league_rank(), tiles);
    const std::int64_t tile = team.league_rank() - item * tiles;
    const std::int64_t row_tile = quotient(tile, column_tiles);
    const std::int64_t row = row_tile * edge, column = (tile - row_tile * column_tiles) * edge;
    const ChunkPlace at = of.place(item, of.shape.heads);
    if (at.chunk == 0) return;
    const A* decays = of.decays_of(at, at.lane);
    const std::int64_t stride = output_gradient.stride;
    const T* gradient = output_gradient.data + at.row * stride + at.lane * of.shape.head_dim + row;
    const T* c = of.c.data + at.row * of.c.stride + of.group_of(at.lane) * of.shape.state + column;
    A* stored = result + of.state_begin(at, at.lane) + row * of.shape.state + column;
    ProductTile<A, Team> sums(team, of.shape.head_dim - row, of.shape.state - column);
    sums.template add<Along::edge, Along::edge>(
        at.count,
        [&](int p, std::int64_t t) {
          return exponential(decays[t]) * static_cast<A>(gradient[t * stride + p]);
        },
        [&](std::int64_t t, int n) { return static_cast<A>(c[t * of.c.stride + n]); });
    sums.for_each([&](int p, int n, A value) { stored[p * of.shape.state + n] = value; });
  }
};

/// Turns the gradients of what enters each chunk into those of what leaves it, from the last chunk to the first.
template <class T>
struct PassStateGradients {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  A* gradients;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t elements = of.state_elements();
    const std::int64_t lane = quotient(item, elements), element = item - lane * elements;
    const std::int64_t batch = quotient(lane, of.shape.heads), head = lane - batch * of.shape.heads;
    A gradient(0);
    for (std::int64_t chunk = of.chunks - 1; chunk >= 0; --chunk) {
      const ChunkPlace at = of.place(batch * of.chunks + chunk, 1);
      A& place = gradients[of.state_begin(at, head) + element];
      const A entering = chunk == 0 ? A(0) : place;
      place = gradient;
      gradient = exponential(of.decays_of(at, head)[at.count - 1]) * gradient + entering;
    }
  }
};

/// The product of the state that leaves a chunk with its gradient: what the decays of the chunk do to all that
/// comes after it.
template <class T>
struct Carries {
  using A = Accumulator<T>;
  static constexpr int threads = 256;

  ScanOperands<T> of;
  const A* gradients;
  A* carries;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const ChunkPlace at = of.place(team.league_rank(), of.shape.heads);
    A total(0);
    if (at.chunk + 1 < of.chunks) {
      const std::int64_t begin = of.state_begin(at, at.lane);
      const A* gradient = gradients + begin;
      const A* state = of.states + begin + of.shape.heads * of.state_elements();
      total = team.template sum_over<A>(of.state_elements(),
                                        [=](std::int64_t i) { return gradient[i] * state[i]; });
    }
    if (team.rank() == 0) carries[team.league_rank()] = total;
  }
};

}  // namespace encore::kernels::impl
