// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "state_space_backward_states.hpp"
#include "state_space_groups.hpp"
#include "state_space_walk.hpp"

namespace encore::kernels::impl {

// A scan on matrix units. `states` and `state_gradients` hold bfloat16 then, in the memory of floats.

/// As Carries, of the states that enter a chunk, with the decay of all of it: what the chunk's own tokens give the
/// state that leaves is counted by themselves.
struct TileCarries {
  static constexpr int threads = 256;

  ScanOperands<bfloat16> of;
  const bfloat16* states;
  const bfloat16* gradients;
  float* carries;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const ChunkPlace at = of.place(team.league_rank(), of.shape.heads);
    const std::int64_t begin = of.state_begin(at, at.lane);
    float total = 0;
    for (int item = team.rank(); item < MatrixTiles::head_dim * MatrixTiles::state / 8; item += threads) {
      const auto state = backend::load_packet<8>(states + begin, item);
      const auto gradient = backend::load_packet<8>(gradients + begin, item);
      for (int i = 0; i < 8; ++i) total += static_cast<float>(state[i]) * static_cast<float>(gradient[i]);
    }
    total = team.sum(total) * exponential(of.decays_of(at, at.lane)[at.count - 1]);
    if (team.rank() == 0) carries[team.league_rank()] = total;
  }
};

template <class Space>
void queue_tile_scores(Stream<Space>& stream, const char* label, const ScanOperands<bfloat16>& of,
                       float* scores) {
  using Functor = TileScores<backend::MatrixUnits>;
  const std::int64_t tiles = rounded_up_quotient(of.width, MatrixTiles::tokens);
  launch(stream, label,
         {read(of.b), read(of.c),
          backend::write(scores, of.chunk_items() * of.shape.groups * of.width * of.width)},
         backend::Teams<MatrixTiles::threads>{of.chunk_items() * of.shape.groups * tiles * tiles,
                                              Functor::scratch_bytes},
         Functor{{}, of, scores, tiles});
}

template <bool Backward, class Space>
void queue_walk(Stream<Space>& stream, const char* label, const ScanOperands<bfloat16>& of,
                const WalkOperands& with) {
  using Functor = TileWalk<Backward, backend::MatrixUnits>;
  const std::size_t products = Backward ? of.token_items() : 0;
  launch(stream, label,
         {read(of.x), read(of.b), read(of.c), read(with.values), backend::read(of.steps, of.token_items()),
          backend::read(of.decays, of.token_items()), backend::read(of.skip, of.shape.heads),
          backend::read(with.scores, of.chunk_items() * of.shape.groups * of.width * of.width),
          write(with.result), backend::write(with.states, of.saved_states()),
          backend::write(with.input_products, products), backend::write(with.skip_products, products)},
         backend::Teams<MatrixTiles::threads>{of.shape.batch * of.shape.heads, Functor::scratch_bytes},
         Functor{{}, of, with});
}

template <bool OfB, class Space>
void queue_group(Stream<Space>& stream, const char* label, const ScanOperands<bfloat16>& of,
                 const GroupTileOperands& with) {
  using Functor = GroupTiles<OfB, backend::MatrixUnits>;
  const std::int64_t tiles = rounded_up_quotient(of.width, MatrixTiles::tokens);
  const std::int64_t score_count = of.chunk_items() * of.shape.groups * of.width * of.width;
  const auto gradients = OfB ? backend::read(with.score_gradients, score_count)
                             : backend::write(with.score_gradients, score_count);
  launch(stream, label,
         {read(of.x), read(of.b), read(of.c), read(with.output_gradient),
          backend::read(of.steps, of.token_items()), backend::read(of.decays, of.token_items()),
          backend::read(with.states, of.saved_states()), backend::read(with.scores, score_count), gradients,
          write(with.result), backend::write(with.own_products, of.token_items()),
          backend::write(with.column_products, OfB ? 0 : tiles * of.token_items())},
         backend::Teams<MatrixTiles::threads>{of.chunk_items() * of.shape.groups * tiles,
                                              Functor::scratch_bytes},
         Functor{{}, of, with, tiles});
}

template <class Space>
void queue_matrix_forward(Stream<Space>& stream, const ScanOperands<bfloat16>& of, Columns<bfloat16> output,
                          float* scores) {
  require_aligned(of.x, of.b, of.c, output);
  queue_tile_scores(stream, "state_space/forward/scores", of, scores);
  queue_walk<false>(stream, "state_space/forward/walk", of,
                    {of.x, output, reinterpret_cast<bfloat16*>(of.states), scores, nullptr, nullptr});
}

/// All but what queue_step_gradients does.
template <class Space, class G>
void queue_matrix_backward(Stream<Space>& stream, const ScanOperands<bfloat16>& of,
                           Columns<const bfloat16> output_gradient,
                           const StateSpaceGradients<Space, bfloat16, G>& gradients,
                           const ScanGradientArrays<float>& arrays) {
  require_aligned(of.x, of.b, of.c, output_gradient, gradients.x, gradients.b, gradients.c);
  auto* states = reinterpret_cast<bfloat16*>(of.states);
  auto* state_gradients = reinterpret_cast<bfloat16*>(arrays.state_gradients);
  queue_tile_scores(stream, "state_space/backward/scores", of, arrays.scores);
  queue_walk<true>(stream, "state_space/backward/walk", of,
                   {output_gradient, gradients.x, state_gradients, arrays.scores, arrays.input_products,
                    arrays.skip_products});
  queue_group<false>(stream, "state_space/backward/c", of,
                     {output_gradient, gradients.c, states, arrays.scores, arrays.score_gradients,
                      arrays.decay_gradients, arrays.column_products});
  queue_group<true>(stream, "state_space/backward/b", of,
                    {output_gradient, gradients.b, state_gradients, arrays.scores, arrays.score_gradients,
                     arrays.leaving_products, nullptr});
  const std::int64_t items = of.chunk_items() * of.shape.heads;
  launch(stream, "state_space/backward/carries",
         {backend::read(of.decays, of.token_items()), backend::read(states, of.saved_states()),
          backend::read(state_gradients, of.saved_states()), backend::write(arrays.carries, items)},
         backend::Teams<TileCarries::threads>{items},
         TileCarries{of, states, state_gradients, arrays.carries});
}

}  // namespace encore::kernels::impl
