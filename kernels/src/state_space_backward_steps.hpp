// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "column_sum.hpp"
#include "state_space_backward_states.hpp"

namespace encore::kernels::impl {

/// The gradients of the raw steps, and each chunk's sums for those of step_bias, decay_log and skip. A decay counts in
/// the decay sums of all later tokens of its chunk and in the state that leaves it: in all of that, but for what its
/// successors give it.
template <class T>
struct StepGradients {
  using A = Accumulator<T>;

  ScanOperands<T> of;
  ScanGradientArrays<A> arrays;
  Columns<T> result;
  std::int64_t blocks;

  static constexpr std::size_t scratch_bytes = 3 * StepBlocks::items * sizeof(A);

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const ChunkPlace at = of.place(team.league_rank(), blocks);
    const std::int64_t length = rounded_up_quotient(at.count, StepBlocks::segments);
    A* totals = team.template scratch<A>();
    A* leaving_totals = totals + StepBlocks::items;
    team.for_each(StepBlocks::items, [&](std::int64_t item) {
      const std::int64_t head = at.lane * StepBlocks::heads + item % StepBlocks::heads;
      const std::int64_t segment = item / StepBlocks::heads;
      A total(0), leaving(0);
      if (head < of.shape.heads)
        for (std::int64_t t = end_of(at, segment, length) - 1; t >= segment * length; --t) {
          total += decay_gradient(at, head, t);
          leaving += leaving_product(at, head, t);
        }
      totals[item] = total;
      leaving_totals[item] = leaving;
    });
    team.barrier();
    constexpr int kept = is_host_team<Team> ? StepBlocks::items : 1;  // On a GPU an item is a thread.
    A later[kept], up_to[kept];
    team.for_each(StepBlocks::items, [&](std::int64_t item) {
      A sum(0), leaving(0);
      for (std::int64_t i = item % StepBlocks::heads; i < StepBlocks::items; i += StepBlocks::heads) {
        if (i > item) sum += totals[i];
        if (i <= item) leaving += leaving_totals[i];
      }
      later[item % kept] = sum;
      up_to[item % kept] = leaving;
    });
    team.barrier();
    team.for_each(StepBlocks::items, [&](std::int64_t item) {
      A sums[3] = {};
      walk(at, item, length, later[item % kept], up_to[item % kept], sums);
      for (int i = 0; i < 3; ++i) totals[i * StepBlocks::items + item] = sums[i];
    });
    team.barrier();
    team.for_each(StepBlocks::heads, [&](std::int64_t i) {
      const std::int64_t head = at.lane * StepBlocks::heads + i;
      if (head >= of.shape.heads) return;
      for (int which = 0; which < 3; ++which) {
        A total(0);
        for (int item = static_cast<int>(i); item < StepBlocks::items; item += StepBlocks::heads)
          total += totals[which * StepBlocks::items + item];
        arrays.parameter_sums[which][(at.batch * of.chunks + at.chunk) * of.shape.heads + head] = total;
      }
    });
  }

 private:
  KOKKOS_FUNCTION static std::int64_t end_of(const ChunkPlace& at, std::int64_t segment,
                                             std::int64_t length) {
    return (segment + 1) * length < at.count ? (segment + 1) * length : at.count;
  }

  /// Of the chunk's decay sum at t, without what goes through the state that leaves.
  KOKKOS_FUNCTION A decay_gradient(const ChunkPlace& at, std::int64_t head, std::int64_t t) const {
    const std::int64_t rows = of.shape.rows(), place = head * rows + at.row + t;
    A value = arrays.decay_gradients[place];
    if (arrays.column_products != nullptr)
      for (std::int64_t tile = t / MatrixTiles::tokens; tile * MatrixTiles::tokens < at.count; ++tile)
        value -= arrays.column_products[tile * of.shape.heads * rows + place];
    return value;
  }
  KOKKOS_FUNCTION A leaving_product(const ChunkPlace& at, std::int64_t head, std::int64_t t) const {
    return arrays.leaving_products == nullptr ? A(0)
                                              : arrays.leaving_products[head * of.shape.rows() + at.row + t];
  }

  KOKKOS_FUNCTION void walk(const ChunkPlace& at, std::int64_t item, std::int64_t length, A later, A leaving,
                            A (&sums)[3]) const {
    const std::int64_t head = at.lane * StepBlocks::heads + item % StepBlocks::heads;
    if (head >= of.shape.heads) return;
    const std::int64_t segment = item / StepBlocks::heads;
    const std::int64_t tokens = head * of.shape.rows() + at.row;
    const auto function = step_function(of, head);
    const A rate = -Kokkos::exp(static_cast<A>(of.decay_log[head]));
    const A* scores = arrays.scores + of.scores_begin(at, of.group_of(head));
    A decay_sum = later + arrays.carries[(at.batch * of.chunks + at.chunk) * of.shape.heads + head];
    for (std::int64_t t = end_of(at, segment, length) - 1; t >= segment * length; --t) {
      decay_sum += decay_gradient(at, head, t);
      leaving -= leaving_product(at, head, t);
      const A gradient = decay_sum + leaving;
      const A raw = static_cast<A>(of.step.data[(at.row + t) * of.step.stride + head]);
      const A of_step = arrays.input_products[tokens + t] +
                        scores[t * (of.width + 1)] * arrays.skip_products[tokens + t] + rate * gradient;
      const A of_raw = of_step * function.derivative(raw);
      result.data[(at.row + t) * result.stride + head] = static_cast<T>(of_raw);
      sums[0] += of_raw;
      sums[1] += gradient * rate * of.steps[tokens + t];
      sums[2] += arrays.skip_products[tokens + t];
    }
  }
};

template <class Space, class T, class G>
void queue_step_gradients(Stream<Space>& stream, const ScanOperands<T>& of,
                          const StateSpaceGradients<Space, T, G>& gradients,
                          const ScanGradientArrays<Accumulator<T>>& arrays) {
  using A = Accumulator<T>;
  const std::int64_t heads = of.shape.heads, chunks = of.chunk_items(), blocks = StepBlocks::blocks(of);
  const std::int64_t leaving = arrays.leaving_products == nullptr ? 0 : of.token_items();
  const std::int64_t columns =
      arrays.column_products == nullptr ? 0 : of.shape.chunk / MatrixTiles::tokens * of.token_items();
  launch(
      stream, "state_space/backward/steps",
      {read(of.step), backend::read(of.step_bias, heads), backend::read(of.decay_log, heads),
       backend::read(of.steps, of.token_items()), backend::read(arrays.decay_gradients, 3 * of.token_items()),
       backend::read(arrays.carries, chunks * heads), backend::read(arrays.column_products, columns),
       backend::read(arrays.leaving_products, leaving),
       backend::read(arrays.scores, chunks * of.shape.groups * of.width * of.width), write(gradients.step),
       backend::write(arrays.parameter_sums[0], 3 * chunks * heads)},
      backend::Teams<StepBlocks::items>{chunks * blocks, StepGradients<T>::scratch_bytes},
      StepGradients<T>{of, arrays, gradients.step, blocks});
  column_sum<Space, A, G>(stream, "state_space/backward/step_sums", chunks, heads, gradients.accumulate,
                          {arrays.parameter_sums[0], gradients.step_bias.data()},
                          {arrays.parameter_sums[1], gradients.decay_log.data()});
  column_sum<Space, A, G>(stream, "state_space/backward/skip_sums", chunks, heads, gradients.accumulate,
                          {arrays.parameter_sums[2], gradients.skip.data()});
}

}  // namespace encore::kernels::impl
