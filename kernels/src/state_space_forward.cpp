// SPDX-License-Identifier: Apache-2.0
#include "state_space_matrix.hpp"

namespace encore::kernels {

namespace {

using impl::Along;
using impl::ChunkPlace;
using impl::ProductTile;
using impl::ProductTileShape;
using impl::ScanOperands;
using impl::StepBlocks;

/// steps, and the sums of -exp(decay_log) * step from each chunk's start.
template <class T>
struct Steps {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  std::int64_t blocks;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const ChunkPlace at = of.place(team.league_rank(), blocks);
    const std::int64_t length = impl::rounded_up_quotient(at.count, StepBlocks::segments);
    A* totals = team.template scratch<A>();
    team.for_each(StepBlocks::items, [&](std::int64_t item) {
      const std::int64_t head = at.lane * StepBlocks::heads + item % StepBlocks::heads;
      A total(0);
      if (head < of.shape.heads)
        walk(at, head, item / StepBlocks::heads, length, [&](std::int64_t, A, A decay) { total += decay; });
      totals[item] = total;
    });
    team.barrier();
    team.for_each(StepBlocks::items, [&](std::int64_t item) {
      const std::int64_t head = at.lane * StepBlocks::heads + item % StepBlocks::heads;
      if (head >= of.shape.heads) return;
      A sum(0);
      for (std::int64_t before = item % StepBlocks::heads; before < item; before += StepBlocks::heads)
        sum += totals[before];
      const std::int64_t begin = head * of.shape.rows() + at.row;
      walk(at, head, item / StepBlocks::heads, length, [&](std::int64_t t, A step, A decay) {
        sum += decay;
        of.steps[begin + t] = step;
        of.decays[begin + t] = sum;
      });
    });
  }

 private:
  template <class Body>
  KOKKOS_FUNCTION void walk(const ChunkPlace& at, std::int64_t head, std::int64_t segment,
                            std::int64_t length, const Body& body) const {
    const auto function = impl::step_function(of, head);
    const A rate = -Kokkos::exp(static_cast<A>(of.decay_log[head]));
    const std::int64_t begin = segment * length;
    const std::int64_t end = begin + length < at.count ? begin + length : at.count;
    const T* raw = of.step.data + at.row * of.step.stride + head;
    for (std::int64_t t = begin; t < end; ++t) {
      const A step = function(static_cast<A>(raw[t * of.step.stride]));
      body(t, step, rate * step);
    }
  }
};

/// What a chunk alone adds to the state: sum over t of exp(decay from t to the end) step_t x_t B_t^T.
template <class T>
struct ChunkStates : ProductTileShape {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  std::int64_t row_tiles, column_tiles;

  explicit ChunkStates(const ScanOperands<T>& operands)
      : of(operands),
        row_tiles(impl::rounded_up_quotient(operands.shape.head_dim, edge)),
        column_tiles(impl::rounded_up_quotient(operands.shape.state, edge)) {}

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t tiles = row_tiles * column_tiles;
    const std::int64_t item = impl::quotient(team.league_rank(), tiles);
    const std::int64_t tile = team.league_rank() - item * tiles;
    const std::int64_t row_tile = impl::quotient(tile, column_tiles);
    const std::int64_t row = row_tile * edge, column = (tile - row_tile * column_tiles) * edge;
    const ChunkPlace at = of.place(item, of.shape.heads);
    const A* decays = of.decays_of(at, at.lane);
    const A* steps = of.steps_of(at, at.lane);
    const A last = decays[at.count - 1];
    const T* x = of.x.data + at.row * of.x.stride + at.lane * of.shape.head_dim + row;
    const T* b = of.b.data + at.row * of.b.stride + of.group_of(at.lane) * of.shape.state + column;
    A* result = of.states + of.state_begin(at, at.lane) + row * of.shape.state + column;
    ProductTile<A, Team> sums(team, of.shape.head_dim - row, of.shape.state - column);
    sums.template add<Along::edge, Along::edge>(
        at.count,
        [&](int p, std::int64_t t) {
          return impl::decay_between(last, decays[t]) * steps[t] * static_cast<A>(x[t * of.x.stride + p]);
        },
        [&](std::int64_t t, int n) { return static_cast<A>(b[t * of.b.stride + n]); });
    sums.for_each([&](int p, int n, A value) { result[p * of.shape.state + n] = value; });
  }
};

/// Turns what each chunk adds into the state that enters it.
template <class T>
struct PassStates {
  using A = Accumulator<T>;

  ScanOperands<T> of;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t elements = of.state_elements();
    const std::int64_t lane = impl::quotient(item, elements), element = item - lane * elements;
    const std::int64_t batch = impl::quotient(lane, of.shape.heads), head = lane - batch * of.shape.heads;
    A state(0);
    for (std::int64_t chunk = 0; chunk < of.chunks; ++chunk) {
      const ChunkPlace at = of.place(batch * of.chunks + chunk, 1);
      A& place = of.states[of.state_begin(at, head) + element];
      const A added = place;
      place = state;
      state = impl::exponential(of.decays_of(at, head)[at.count - 1]) * state + added;
    }
  }
};

template <class T>
struct Outputs : ProductTileShape {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  const A* scores;
  Columns<T> output;
  std::int64_t row_tiles, column_tiles;

  Outputs(const ScanOperands<T>& operands, const A* scores_, Columns<T> output_)
      : of(operands),
        scores(scores_),
        output(output_),
        row_tiles(impl::rounded_up_quotient(operands.width, edge)),
        column_tiles(impl::rounded_up_quotient(operands.shape.head_dim, edge)) {}

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t tiles = row_tiles * column_tiles;
    const std::int64_t item = impl::quotient(team.league_rank(), tiles);
    const std::int64_t tile = team.league_rank() - item * tiles;
    const std::int64_t row_tile = impl::quotient(tile, column_tiles);
    const std::int64_t row = row_tile * edge, column = (tile - row_tile * column_tiles) * edge;
    const ChunkPlace at = of.place(item, of.shape.heads);
    if (row >= at.count) return;
    const std::int64_t group = of.group_of(at.lane);
    const std::int64_t channel = at.lane * of.shape.head_dim + column;
    const T* x = of.x.data + at.row * of.x.stride + channel;
    ProductTile<A, Team> sums(team, at.count - row, of.shape.head_dim - column);
    impl::add_scan_output<true>(of, scores, at, group, row, column, sums);
    const A skip = static_cast<A>(of.skip[at.lane]);
    T* result = output.data + (at.row + row) * output.stride + channel;
    sums.for_each([&](int t, int p, A value) {
      result[t * output.stride + p] =
          static_cast<T>(value + skip * static_cast<A>(x[(row + t) * of.x.stride + p]));
    });
  }
};

}  // namespace

std::int64_t state_space_forward_workspace(const StateSpaceShape& shape) {
  const std::int64_t width = shape.chunk < shape.tokens ? shape.chunk : shape.tokens;
  return shape.batch * shape.chunks() * shape.groups * width * width;
}

template <class Space, class T>
void state_space_forward(Stream<Space>& stream, const StateSpaceShape& shape,
                         const StateSpaceInputs<Space, T>& inputs, Columns<T> output,
                         const StateSpaceSaved<Space, Accumulator<T>>& saved,
                         Vector<Accumulator<T>, Space> workspace) {
  using A = Accumulator<T>;
  const auto of = impl::scan_operands<Space, T>(
      "state_space_forward: inputs and what is saved must have the shapes that the StateSpaceShape gives "
      "them",
      shape, inputs, saved);
  impl::require_shape(output.rows == shape.rows() && output.columns == shape.heads * shape.head_dim,
                      "state_space_forward: output must be [rows, heads * head_dim]");
  impl::require_shape(
      impl::rows_of(workspace) >= state_space_forward_workspace(shape),
      "state_space_forward: the workspace must have state_space_forward_workspace(shape) elements");
  if (shape.rows() == 0) return;
  const auto read_tokens = [&](const A* values) { return backend::read(values, of.token_items()); };
  const auto write_tokens = [&](const A* values) { return backend::write(values, of.token_items()); };
  const std::size_t tile_scratch = ProductTileShape::scratch_bytes<Space, A>();
  const std::int64_t blocks = StepBlocks::blocks(of);
  launch(stream, "state_space/forward/steps",
         {impl::read(of.step), backend::read(inputs.step_bias), backend::read(inputs.decay_log),
          write_tokens(of.steps), write_tokens(of.decays)},
         backend::Teams<StepBlocks::items>{of.chunk_items() * blocks, StepBlocks::items * sizeof(A)},
         Steps<T>{of, blocks});
  if constexpr (impl::has_matrix_units<Space, T>)
    if (impl::fits_matrix_tiles(shape))
      return impl::queue_matrix_forward(stream, of, output, workspace.data());
  impl::queue_scores(stream, "state_space/forward/scores", of, workspace.data());
  const ChunkStates<T> states(of);
  launch(stream, "state_space/forward/states",
         {impl::read(of.x), impl::read(of.b), read_tokens(of.steps), read_tokens(of.decays),
          backend::write(of.states, of.saved_states())},
         backend::Teams<ProductTileShape::threads>{
             of.chunk_items() * shape.heads * states.row_tiles * states.column_tiles, tile_scratch},
         states);
  launch(stream, "state_space/forward/pass",
         {read_tokens(of.decays), backend::write(of.states, of.saved_states())},
         backend::Range{shape.batch * shape.heads * of.state_elements()}, PassStates<T>{of});
  const Outputs<T> outputs(of, workspace.data(), output);
  launch(stream, "state_space/forward/output",
         {impl::read(of.x), impl::read(of.c), read_tokens(of.steps), read_tokens(of.decays),
          backend::read(inputs.skip), backend::read(of.states, of.saved_states()),
          backend::read(workspace.data(), state_space_forward_workspace(shape)), impl::write(output)},
         backend::Teams<ProductTileShape::threads>{
             of.chunk_items() * shape.heads * outputs.row_tiles * outputs.column_tiles, tile_scratch},
         outputs);
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                         \
  template void state_space_forward<SPACE, T>(                                               \
      Stream<SPACE>&, const StateSpaceShape&, const StateSpaceInputs<SPACE, T>&, Columns<T>, \
      const StateSpaceSaved<SPACE, Accumulator<T>>&, Vector<Accumulator<T>, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
