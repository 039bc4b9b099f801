// SPDX-License-Identifier: Apache-2.0
#include "column_sum.hpp"
#include "state_space_backward_steps.hpp"
#include "state_space_matrix.hpp"

namespace encore::kernels {

namespace {

using impl::Along;
using impl::ChunkPlace;
using impl::ProductTile;
using impl::ProductTileShape;
using impl::ScanGradientArrays;
using impl::ScanOperands;
using impl::StepBlocks;

/// The gradient of x, and the products over the head's columns that the gradients of steps and decays are made of.
/// For one pair of tokens s < t its term of y_t . gradient counts for the decay sum of t and against that of s. What a
/// token gives itself depends on no decay and is kept apart: it would only cancel.
template <class T>
struct InputGradients : ProductTileShape {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  Columns<const T> output_gradient;
  Columns<T> result;
  ScanGradientArrays<A> arrays;
  std::int64_t row_tiles;

  InputGradients(const ScanOperands<T>& operands, Columns<const T> gradient, Columns<T> x_gradient,
                 const ScanGradientArrays<A>& arrays_)
      : of(operands),
        output_gradient(gradient),
        result(x_gradient),
        arrays(arrays_),
        row_tiles(impl::rounded_up_quotient(operands.width, edge)) {}

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t item = impl::quotient(team.league_rank(), row_tiles);
    const std::int64_t row = (team.league_rank() - item * row_tiles) * edge;
    const ChunkPlace at = of.place(item, of.shape.heads);
    if (row >= at.count) return;
    for (std::int64_t column = 0; column < of.shape.head_dim; column += edge)
      columns_from(team, at, row, column);
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void columns_from(const Team& team, const ChunkPlace& at, std::int64_t row,
                                    std::int64_t column) const {
    const std::int64_t group = of.group_of(at.lane), channel = at.lane * of.shape.head_dim + column;
    const std::int64_t tokens = at.lane * of.shape.rows() + at.row + row;
    const std::int64_t x_stride = of.x.stride, y_stride = output_gradient.stride;
    const T* x = of.x.data + (at.row + row) * x_stride + channel;
    const T* y = output_gradient.data + (at.row + row) * y_stride + channel;
    const A* steps = of.steps_of(at, at.lane) + row;
    A* decay_gradients = arrays.decay_gradients + tokens;
    A* input_products = arrays.input_products + tokens;
    A* skip_products = arrays.skip_products + tokens;
    {
      ProductTile<A, Team> outputs(team, at.count - row, of.shape.head_dim - column);
      impl::add_scan_output<false>(of, arrays.scores, at, group, row, column, outputs);
      outputs.sum_rows(
          [&](int t, int p, A value) { return value * static_cast<A>(y[t * y_stride + p]); },
          [&](int t, A total) { decay_gradients[t] = column == 0 ? total : decay_gradients[t] + total; });
      outputs.sum_rows(
          [&](int t, int p, A) {
            return static_cast<A>(x[t * x_stride + p]) * static_cast<A>(y[t * y_stride + p]);
          },
          [&](int t, A total) { skip_products[t] = column == 0 ? total : skip_products[t] + total; });
    }
    ProductTile<A, Team> gradients(team, at.count - row, of.shape.head_dim - column);
    add_input_gradient(at, group, row, column, gradients);
    gradients.sum_rows([&](int s, int p, A value) { return value * static_cast<A>(x[s * x_stride + p]); },
                       [&](int s, A total) {
                         decay_gradients[s] -= steps[s] * total;
                         input_products[s] = column == 0 ? total : input_products[s] + total;
                       });
    const A skip = static_cast<A>(of.skip[at.lane]);
    const A* scores = arrays.scores + of.scores_begin(at, group) + row * (of.width + 1);
    T* stored = result.data + (at.row + row) * result.stride + channel;
    gradients.for_each([&](int s, int p, A value) {
      const A own = steps[s] * scores[s * (of.width + 1)] + skip;
      stored[s * result.stride + p] =
          static_cast<T>(steps[s] * value + own * static_cast<A>(y[s * y_stride + p]));
    });
  }

  /// sums(s, p) += the gradient of step * x through later tokens.
  template <class Tile>
  KOKKOS_FUNCTION void add_input_gradient(const ChunkPlace& at, std::int64_t group, std::int64_t row,
                                          std::int64_t column, Tile& sums) const {
    const A* decays = of.decays_of(at, at.lane) + row;
    const A* scores = arrays.scores + of.scores_begin(at, group) + row * of.width + row;
    const std::int64_t y_stride = output_gradient.stride;
    const T* y = output_gradient.data + (at.row + row) * y_stride + at.lane * of.shape.head_dim + column;
    sums.template add<Along::edge, Along::edge>(
        at.count - row,
        [&](int s, std::int64_t t) {
          const A value = impl::decay_between(decays[t], decays[s]) * scores[t * of.width + s];
          return s < t ? value : A(0);
        },
        [&](std::int64_t t, int p) { return static_cast<A>(y[t * y_stride + p]); });
    if (at.chunk + 1 == of.chunks) return;
    const A last = of.decays_of(at, at.lane)[at.count - 1];
    const T* b = of.b.data + (at.row + row) * of.b.stride + group * of.shape.state;
    const A* state = arrays.state_gradients + of.state_begin(at, at.lane) + column * of.shape.state;
    sums.template add<Along::depth, Along::depth>(
        of.shape.state,
        [&](int s, std::int64_t n) {
          return impl::decay_between(last, decays[s]) * static_cast<A>(b[s * of.b.stride + n]);
        },
        [&](std::int64_t n, int p) { return state[p * of.shape.state + n]; });
  }
};

/// score_gradients[t][s] = sum over the group's heads of exp(decay from s to t) step_s (y gradient_t . x_s).
template <class T>
struct ScoreGradients : ProductTileShape {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  Columns<const T> output_gradient;
  A* result;
  std::int64_t tiles;

  ScoreGradients(const ScanOperands<T>& operands, Columns<const T> gradient, A* score_gradients)
      : of(operands),
        output_gradient(gradient),
        result(score_gradients),
        tiles(impl::rounded_up_quotient(operands.width, edge)) {}

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t pair = impl::quotient(team.league_rank(), tiles * tiles);
    const int tile = static_cast<int>(team.league_rank() - pair * tiles * tiles);
    const int row = tile / static_cast<int>(tiles) * edge, column = tile % static_cast<int>(tiles) * edge;
    const ChunkPlace at = of.place(pair, of.shape.groups);
    if (column > row || row >= at.count) return;
    const std::int64_t x_stride = of.x.stride, y_stride = output_gradient.stride;
    ProductTile<A, Team> total(team, at.count - row, at.count - column, 0);
    for (std::int64_t i = 0; i < of.heads_of_group(); ++i) {
      const std::int64_t head = at.lane * of.heads_of_group() + i;
      const T* x = of.x.data + (at.row + column) * x_stride + head * of.shape.head_dim;
      const T* y = output_gradient.data + (at.row + row) * y_stride + head * of.shape.head_dim;
      const A* decays = of.decays_of(at, head);
      const A* steps = of.steps_of(at, head) + column;
      ProductTile<A, Team> products(team, at.count - row, at.count - column, 1);
      products.template add<Along::depth, Along::depth>(
          of.shape.head_dim, [&](int t, std::int64_t p) { return static_cast<A>(y[t * y_stride + p]); },
          [&](std::int64_t p, int s) { return static_cast<A>(x[s * x_stride + p]); });
      total.add_scaled(products, [&](int t, int s) {
        const A factor = impl::decay_between(decays[row + t], decays[column + s]) * steps[s];
        return column + s <= row + t ? factor : A(0);
      });
    }
    A* stored = result + of.scores_begin(at, at.lane) + row * of.width + column;
    total.for_each([&](int t, int s, A value) { stored[t * of.width + s] = value; });
  }
};

/// The gradient of B or of C: through the scores, and through the states that the group's heads have from B, or
/// have there for C.
template <bool OfB, class T>
struct GroupGradients : ProductTileShape {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  Columns<const T> output_gradient;
  Columns<T> result;
  ScanGradientArrays<A> arrays;
  std::int64_t row_tiles, column_tiles;

  GroupGradients(const ScanOperands<T>& operands, Columns<const T> gradient, Columns<T> result_,
                 const ScanGradientArrays<A>& arrays_)
      : of(operands),
        output_gradient(gradient),
        result(result_),
        arrays(arrays_),
        row_tiles(impl::rounded_up_quotient(operands.width, edge)),
        column_tiles(impl::rounded_up_quotient(operands.shape.state, edge)) {}

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t tiles = row_tiles * column_tiles;
    const std::int64_t item = impl::quotient(team.league_rank(), tiles);
    const std::int64_t tile = team.league_rank() - item * tiles;
    const std::int64_t row_tile = impl::quotient(tile, column_tiles);
    const std::int64_t row = row_tile * edge, column = (tile - row_tile * column_tiles) * edge;
    const ChunkPlace at = of.place(item, of.shape.groups);
    if (row >= at.count) return;
    ProductTile<A, Team> sums(team, at.count - row, of.shape.state - column);
    if (OfB ? at.chunk + 1 < of.chunks : at.chunk > 0)
      for (std::int64_t i = 0; i < of.heads_of_group(); ++i)
        add_head(at, at.lane * of.heads_of_group() + i, row, column, sums);
    add_scores(at, row, column, sums);
    T* stored = result.data + (at.row + row) * result.stride + at.lane * of.shape.state + column;
    sums.for_each([&](int t, int n, A value) { stored[t * result.stride + n] = static_cast<T>(value); });
  }

 private:
  template <class Tile>
  KOKKOS_FUNCTION void add_head(const ChunkPlace& at, std::int64_t head, std::int64_t row,
                                std::int64_t column, Tile& sums) const {
    const Columns<const T>& source = OfB ? of.x : output_gradient;
    const std::int64_t stride = source.stride;
    const T* values = source.data + (at.row + row) * stride + head * of.shape.head_dim;
    const A* decays = of.decays_of(at, head) + row;
    const A* steps = of.steps_of(at, head) + row;
    const A last = of.decays_of(at, head)[at.count - 1];
    const A* state = (OfB ? arrays.state_gradients : of.states) + of.state_begin(at, head) + column;
    sums.template add<Along::depth, Along::edge>(
        of.shape.head_dim,
        [&](int t, std::int64_t p) {
          const A factor =
              OfB ? impl::decay_between(last, decays[t]) * steps[t] : impl::exponential(decays[t]);
          return factor * static_cast<A>(values[t * stride + p]);
        },
        [&](std::int64_t p, int n) { return state[p * of.shape.state + n]; });
  }

  template <class Tile>
  KOKKOS_FUNCTION void add_scores(const ChunkPlace& at, std::int64_t row, std::int64_t column,
                                  Tile& sums) const {
    const A* gradients = arrays.score_gradients + of.scores_begin(at, at.lane);
    const Columns<const T>& source = OfB ? of.c : of.b;
    const std::int64_t stride = source.stride;
    const T* values = source.data + at.row * stride + at.lane * of.shape.state + column;
    if constexpr (OfB) {
      sums.template add<Along::edge, Along::edge>(
          at.count - row, [&](int s, std::int64_t t) { return gradients[(row + t) * of.width + row + s]; },
          [&](std::int64_t t, int n) { return static_cast<A>(values[(row + t) * stride + n]); });
    } else {
      const std::int64_t end = row + edge;
      sums.template add<Along::depth, Along::edge>(
          end < at.count ? end : at.count,
          [&](int t, std::int64_t s) { return gradients[(row + t) * of.width + s]; },
          [&](std::int64_t s, int n) { return static_cast<A>(values[s * stride + n]); });
    }
  }
};

template <class Space, class T, class G>
void require_gradients(const StateSpaceShape& shape, const StateSpaceGradients<Space, T, G>& gradients,
                       Columns<const T> output_gradient) {
  const auto fits = [&](const auto& columns, std::int64_t count) {
    return columns.rows == shape.rows() && columns.columns == count;
  };
  impl::require_shape(
      fits(output_gradient, shape.heads * shape.head_dim) &&
          fits(gradients.x, shape.heads * shape.head_dim) && fits(gradients.b, shape.groups * shape.state) &&
          fits(gradients.c, shape.groups * shape.state) && fits(gradients.step, shape.heads) &&
          impl::is_vector(gradients.step_bias, shape.heads) &&
          impl::is_vector(gradients.decay_log, shape.heads) && impl::is_vector(gradients.skip, shape.heads),
      "state_space_backward: gradients must have the shapes of what they are gradients of");
}

}  // namespace

std::int64_t state_space_backward_workspace(const StateSpaceShape& shape) {
  return ScanGradientArrays<float>::elements(shape);
}

template <class Space, class T, class G>
void state_space_backward(Stream<Space>& stream, const StateSpaceShape& shape,
                          const StateSpaceInputs<Space, T>& inputs, Columns<const T> output_gradient,
                          const StateSpaceSaved<Space, Accumulator<T>>& saved,
                          const StateSpaceGradients<Space, T, G>& gradients,
                          Vector<Accumulator<T>, Space> workspace) {
  using A = Accumulator<T>;
  const auto of = impl::scan_operands<Space, T>(
      "state_space_backward: inputs and what is saved must have the shapes that the StateSpaceShape gives "
      "them",
      shape, inputs, saved);
  require_gradients(shape, gradients, output_gradient);
  impl::require_shape(impl::rows_of(workspace) >= state_space_backward_workspace(shape),
                      "state_space_backward: the workspace must have state_space_backward_workspace(shape) "
                      "elements");
  if (shape.rows() == 0) return;
  const bool matrix_tiles = impl::has_matrix_units<Space, T> && impl::fits_matrix_tiles(shape);
  const ScanGradientArrays<A> arrays(of, workspace.data(), matrix_tiles);
  if constexpr (impl::has_matrix_units<Space, T>)
    if (matrix_tiles) {
      impl::queue_matrix_backward(stream, of, output_gradient, gradients, arrays);
      return impl::queue_step_gradients(stream, of, gradients, arrays);
    }
  const std::int64_t states = of.saved_states(), items = of.token_items(), chunks = of.chunk_items();
  const std::int64_t score_count = chunks * shape.groups * of.width * of.width;
  const std::size_t scratch = ProductTileShape::scratch_bytes<Space, A>();
  const auto teams = [&](std::int64_t league) {
    return backend::Teams<ProductTileShape::threads>{league, scratch};
  };
  const auto decays = backend::read(of.decays, items), steps = backend::read(of.steps, items);
  const auto state_gradients = backend::read(arrays.state_gradients, states);
  const auto y = impl::read(output_gradient);

  impl::queue_scores(stream, "state_space/backward/scores", of, arrays.scores);
  const impl::ChunkStateGradients<T> chunk_states(of, output_gradient, arrays.state_gradients);
  launch(stream, "state_space/backward/states",
         {y, impl::read(of.c), decays, backend::write(arrays.state_gradients, states)},
         teams(chunks * shape.heads * chunk_states.row_tiles * chunk_states.column_tiles), chunk_states);
  launch(stream, "state_space/backward/pass", {decays, backend::write(arrays.state_gradients, states)},
         backend::Range{shape.batch * shape.heads * shape.head_dim * shape.state},
         impl::PassStateGradients<T>{of, arrays.state_gradients});
  launch(stream, "state_space/backward/carries",
         {state_gradients, backend::read(of.states, states),
          backend::write(arrays.carries, chunks * shape.heads)},
         backend::Teams<impl::Carries<T>::threads>{chunks * shape.heads},
         impl::Carries<T>{of, arrays.state_gradients, arrays.carries});
  const InputGradients<T> input_gradients(of, output_gradient, gradients.x, arrays);
  launch(stream, "state_space/backward/input",
         {y, impl::read(of.x), impl::read(of.b), impl::read(of.c), decays, steps, backend::read(inputs.skip),
          state_gradients, backend::read(of.states, states), backend::read(arrays.scores, score_count),
          impl::write(gradients.x), backend::write(arrays.decay_gradients, 3 * items)},
         teams(chunks * shape.heads * input_gradients.row_tiles), input_gradients);
  impl::queue_step_gradients(stream, of, gradients, arrays);
  const ScoreGradients<T> score_gradients(of, output_gradient, arrays.score_gradients);
  launch(stream, "state_space/backward/score_gradients",
         {y, impl::read(of.x), decays, steps, backend::write(arrays.score_gradients, score_count)},
         teams(chunks * shape.groups * score_gradients.tiles * score_gradients.tiles), score_gradients);
  const GroupGradients<false, T> c_gradients(of, output_gradient, gradients.c, arrays);
  const std::int64_t group_teams = chunks * shape.groups * c_gradients.row_tiles * c_gradients.column_tiles;
  launch(stream, "state_space/backward/c",
         {y, impl::read(of.b), decays, steps, backend::read(of.states, states),
          backend::read(arrays.score_gradients, score_count), impl::write(gradients.c)},
         teams(group_teams), c_gradients);
  launch(stream, "state_space/backward/b",
         {impl::read(of.x), impl::read(of.c), decays, steps, state_gradients,
          backend::read(arrays.score_gradients, score_count), impl::write(gradients.b)},
         teams(group_teams), GroupGradients<true, T>(of, output_gradient, gradients.b, arrays));
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                            \
  template void state_space_backward<SPACE, T, G>(                                                 \
      Stream<SPACE>&, const StateSpaceShape&, const StateSpaceInputs<SPACE, T>&, Columns<const T>, \
      const StateSpaceSaved<SPACE, Accumulator<T>>&, const StateSpaceGradients<SPACE, T, G>&,      \
      Vector<Accumulator<T>, SPACE>);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
