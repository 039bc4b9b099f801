// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/state_space.hpp>

#include "column_access.hpp"
#include "mathematics.hpp"
#include "product_tile.hpp"

namespace encore::kernels::impl {

/// One chunk of one head, or of one group.
struct ChunkPlace {
  std::int64_t batch, chunk;
  std::int64_t lane;   ///< the head or group
  std::int64_t row;    ///< the first
  std::int64_t count;  ///< of rows
};

/// What all kernels of a scan work on.
template <class T>
struct ScanOperands {
  using A = Accumulator<T>;

  StateSpaceShape shape;
  std::int64_t chunks, width;  ///< of a sequence; of a chunk, at most its sequence
  Columns<const T> x, b, c, step;
  const T* step_bias;
  const T* decay_log;
  const T* skip;
  A* steps;
  A* decays;
  A* states;

  KOKKOS_FUNCTION ChunkPlace place(std::int64_t item, std::int64_t lanes) const {
    ChunkPlace at{};
    const std::int64_t chunk_item = quotient(item, lanes);
    at.lane = item - chunk_item * lanes;
    at.batch = quotient(chunk_item, chunks);
    at.chunk = chunk_item - at.batch * chunks;
    at.row = at.batch * shape.tokens + at.chunk * width;
    const std::int64_t left = shape.tokens - at.chunk * width;
    at.count = left < width ? left : width;
    return at;
  }
  KOKKOS_FUNCTION std::int64_t group_of(std::int64_t head) const {
    return quotient(head * shape.groups, shape.heads);
  }
  KOKKOS_FUNCTION std::int64_t heads_of_group() const { return quotient(shape.heads, shape.groups); }
  KOKKOS_FUNCTION std::int64_t state_elements() const { return shape.head_dim * shape.state; }
  /// Where a [chunk, head] array of states has those of a chunk.
  KOKKOS_FUNCTION std::int64_t state_begin(const ChunkPlace& at, std::int64_t head) const {
    return ((at.batch * chunks + at.chunk) * shape.heads + head) * state_elements();
  }
  KOKKOS_FUNCTION std::int64_t scores_begin(const ChunkPlace& at, std::int64_t group) const {
    return ((at.batch * chunks + at.chunk) * shape.groups + group) * width * width;
  }
  /// A head's sums of the logarithms of decays, from the chunk's first row on.
  KOKKOS_FUNCTION const A* decays_of(const ChunkPlace& at, std::int64_t head) const {
    return decays + head * shape.rows() + at.row;
  }
  KOKKOS_FUNCTION const A* steps_of(const ChunkPlace& at, std::int64_t head) const {
    return steps + head * shape.rows() + at.row;
  }

  std::int64_t chunk_items() const { return shape.batch * chunks; }
  std::int64_t saved_states() const { return chunk_items() * shape.heads * shape.head_dim * shape.state; }
  std::int64_t token_items() const { return shape.heads * shape.rows(); }
};

/// exp of what is a difference of decays, which rounding may have left a little above zero.
template <class A>
KOKKOS_INLINE_FUNCTION A decay_between(A later, A earlier) {
  const A difference = later - earlier;
  return exponential(difference < 0 ? difference : A(0));
}

/// Operands whose views fit the shape; throws ConfigurationError otherwise.
template <class Space, class T>
ScanOperands<T> scan_operands(const char* sentence, const StateSpaceShape& shape,
                              const StateSpaceInputs<Space, T>& inputs,
                              const StateSpaceSaved<Space, Accumulator<T>>& saved) {
  const std::int64_t rows = shape.rows(), chunks = shape.chunks();
  const auto fits = [&](const auto& columns, std::int64_t count) {
    return columns.rows == rows && columns.columns == count;
  };
  require_shape(shape.heads > 0 && shape.groups > 0 && shape.heads % shape.groups == 0 && shape.chunk > 0 &&
                    fits(inputs.x, shape.heads * shape.head_dim) &&
                    fits(inputs.b, shape.groups * shape.state) &&
                    fits(inputs.c, shape.groups * shape.state) && fits(inputs.step, shape.heads) &&
                    is_vector(inputs.step_bias, shape.heads) && is_vector(inputs.decay_log, shape.heads) &&
                    is_vector(inputs.skip, shape.heads) && is_matrix(saved.steps, shape.heads, rows) &&
                    is_matrix(saved.decays, shape.heads, rows) &&
                    is_matrix(saved.states, shape.batch * chunks * shape.heads, shape.head_dim * shape.state),
                sentence);
  return {shape,
          chunks,
          shape.chunk < shape.tokens ? shape.chunk : shape.tokens,
          inputs.x,
          inputs.b,
          inputs.c,
          inputs.step,
          inputs.step_bias.data(),
          inputs.decay_log.data(),
          inputs.skip.data(),
          saved.steps.data(),
          saved.decays.data(),
          saved.states.data()};
}

/// Products of the tokens of a chunk with each other: scores[t][s] = C_t . B_s, for s <= t.
template <class T>
struct ChunkScores : ProductTileShape {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  A* scores;  ///< [batch, chunks, groups, width, width]
  std::int64_t tiles;

  ChunkScores(const ScanOperands<T>& operands, A* result)
      : of(operands), scores(result), tiles(rounded_up_quotient(operands.width, edge)) {}

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t pair = quotient(team.league_rank(), tiles * tiles);
    const int tile = static_cast<int>(team.league_rank() - pair * tiles * tiles);
    const int from = tile / static_cast<int>(tiles) * edge, to = tile % static_cast<int>(tiles) * edge;
    const ChunkPlace at = of.place(pair, of.shape.groups);
    if (to > from || from >= at.count) return;
    const T* c = of.c.data + (at.row + from) * of.c.stride + at.lane * of.shape.state;
    const T* b = of.b.data + (at.row + to) * of.b.stride + at.lane * of.shape.state;
    A* result = scores + of.scores_begin(at, at.lane) + from * of.width + to;
    ProductTile<A, Team> sums(team, at.count - from, at.count - to);
    sums.template add<Along::depth, Along::depth>(
        of.shape.state, [&](int t, std::int64_t n) { return static_cast<A>(c[t * of.c.stride + n]); },
        [&](std::int64_t n, int s) { return static_cast<A>(b[s * of.b.stride + n]); });
    sums.for_each([&](int t, int s, A value) { result[t * of.width + s] = value; });
  }
};

template <class Space, class T>
void queue_scores(Stream<Space>& stream, const char* label, const ScanOperands<T>& of,
                  Accumulator<T>* scores) {
  using A = Accumulator<T>;
  const ChunkScores<T> functor(of, scores);
  launch(stream, label,
         {read(of.b), read(of.c),
          backend::write(scores, of.chunk_items() * of.shape.groups * of.width * of.width)},
         backend::Teams<ProductTileShape::threads>{
             of.chunk_items() * of.shape.groups * functor.tiles * functor.tiles,
             ProductTileShape::scratch_bytes<Space, A>()},
         functor);
}

/// sums(t, p) += what the scan outputs, without the skip, for the rows from `row` and the columns of the head from
/// `column` on: exp(decay from the start) C_t state + sum over s <= t of exp(decay from s) step_s scores[t][s] x_s.
/// Without `Diagonal` over s < t: what depends on decays.
template <bool Diagonal, class T, class Tile>
KOKKOS_FUNCTION void add_scan_output(const ScanOperands<T>& of, const Accumulator<T>* all_scores,
                                     const ChunkPlace& at, std::int64_t group, std::int64_t row,
                                     std::int64_t column, Tile& sums) {
  using A = Accumulator<T>;
  const A* decays = of.decays_of(at, at.lane);
  const A* steps = of.steps_of(at, at.lane);
  const A* scores = all_scores + of.scores_begin(at, group) + row * of.width;
  const T* x = of.x.data + at.row * of.x.stride + at.lane * of.shape.head_dim + column;
  const T* c = of.c.data + (at.row + row) * of.c.stride + group * of.shape.state;
  const A* state = of.states + of.state_begin(at, at.lane) + column * of.shape.state;
  const std::int64_t end = row + ProductTileShape::edge;
  sums.template add<Along::depth, Along::edge>(
      end < at.count ? end : at.count,
      [&](int t, std::int64_t s) {
        const A value = decay_between(decays[row + t], decays[s]) * steps[s] * scores[t * of.width + s];
        return s < row + t + (Diagonal ? 1 : 0) ? value : A(0);
      },
      [&](std::int64_t s, int p) { return static_cast<A>(x[s * of.x.stride + p]); });
  if (at.chunk == 0) return;
  sums.template add<Along::depth, Along::depth>(
      of.shape.state,
      [&](int t, std::int64_t n) {
        return exponential(decays[row + t]) * static_cast<A>(c[t * of.c.stride + n]);
      },
      [&](std::int64_t n, int p) { return state[p * of.shape.state + n]; });
}

/// The step of a head for a raw input, its derivative, and what it depends on.
template <class A>
struct StepFunction {
  A bias, minimum, maximum;

  /// softplus: log(1 + exp(v)).
  KOKKOS_FUNCTION A unlimited(A raw) const {
    const A v = raw + bias;
    return v > 0 ? v + Kokkos::log1p(Kokkos::exp(-v)) : Kokkos::log1p(Kokkos::exp(v));
  }
  KOKKOS_FUNCTION A operator()(A raw) const {
    const A step = unlimited(raw);
    const A raised = step < minimum ? minimum : step;
    return maximum > 0 && raised > maximum ? maximum : raised;
  }
  KOKKOS_FUNCTION A derivative(A raw) const {
    const A step = unlimited(raw);
    if (step < minimum || (maximum > 0 && step > maximum)) return 0;
    return 1 / (1 + Kokkos::exp(-(raw + bias)));
  }
};

template <class T>
KOKKOS_FUNCTION StepFunction<Accumulator<T>> step_function(const ScanOperands<T>& of, std::int64_t head) {
  using A = Accumulator<T>;
  return {static_cast<A>(of.step_bias[head]), static_cast<A>(of.shape.step_minimum),
          static_cast<A>(of.shape.step_maximum)};
}

/// A team takes a chunk of `heads` neighbouring heads, cut into `segments` stretches of tokens that are summed
/// apart and then joined: 256 items, whatever the number of threads.
struct StepBlocks {
  static constexpr int heads = 16;
  static constexpr int segments = 16;
  static constexpr int items = heads * segments;

  template <class T>
  static std::int64_t blocks(const ScanOperands<T>& of) {
    return rounded_up_quotient(of.shape.heads, heads);
  }
};

}  // namespace encore::kernels::impl
