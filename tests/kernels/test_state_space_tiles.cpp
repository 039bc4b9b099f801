// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/space.hpp>

// On a GPU test_state_space.cpp runs these kernels. Here their warps are emulated, which nvcc would take for a call of
// host functions from a device.
#if !defined(KOKKOS_ENABLE_CUDA) && defined(KOKKOS_ENABLE_SERIAL)

#include "../../kernels/src/state_space_backward_states.hpp"
#include "../../kernels/src/state_space_groups.hpp"
#include "../../kernels/src/state_space_walk.hpp"

#include "emulated_warps.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"

#include <doctest/doctest.h>

using namespace encore;
using namespace encore::tests;
using kernels::Columns;
using kernels::StateSpaceShape;

namespace {

using Space = backend::Serial;
using T = backend::bfloat16;
namespace impl = kernels::impl;
using Units = EmulatedTeams::Units;

std::vector<T> random(std::int64_t count, unsigned seed, double mean = 0, double deviation = 1) {
  const auto values = normal_values<T>(count, seed, mean, deviation);
  std::vector<T> result;
  for (const double value : values) result.push_back(T(value));
  return result;
}

template <class Element>
std::vector<double> doubles(const std::vector<Element>& values) {
  std::vector<double> result;
  for (const Element& value : values) result.push_back(static_cast<double>(static_cast<float>(value)));
  return result;
}

/// A scan by the portable kernels, and the arrays that the tiles' kernels fill.
struct Scan {
  explicit Scan(const StateSpaceShape& shape_)
      : shape(shape_),
        rows(shape.rows()),
        inner(shape.heads * shape.head_dim),
        group(shape.groups * shape.state),
        mixed_columns(inner + 2 * group),
        mixed(random(rows * mixed_columns, 1)),
        raw(random(rows * shape.heads, 2, -1)),
        step_bias(random(shape.heads, 3, -1, 0.5)),
        decay_log(random(shape.heads, 4, 0.5, 0.5)),
        skip(random(shape.heads, 5, 1, 0.5)),
        dy(random(rows * inner, 6)),
        output(dy.size()),
        mixed_gradient(mixed.size()),
        raw_gradient(raw.size()),
        steps(static_cast<std::size_t>(shape.heads * rows)),
        decays(steps.size()),
        states(static_cast<std::size_t>(shape.batch * shape.chunks() * inner * shape.state)),
        workspace(static_cast<std::size_t>(std::max(kernels::state_space_forward_workspace(shape),
                                                    kernels::state_space_backward_workspace(shape)))),
        parameter_gradients(static_cast<std::size_t>(3 * shape.heads)) {
    backend::Stream<Space> stream;
    const backend::Vector<float, Space> memory(workspace.data(), workspace.size());
    kernels::state_space_forward<Space, T>(stream, shape, inputs(), matrix(output), saved(), memory);
    const auto vector = [&](std::int64_t which) {
      return backend::Vector<float, Space>(parameter_gradients.data() + which * shape.heads, shape.heads);
    };
    kernels::state_space_backward<Space, T, float>(stream, shape, inputs(), matrix(dy), saved(),
                                                   {part(mixed_gradient, 0),
                                                    part(mixed_gradient, 1),
                                                    part(mixed_gradient, 2),
                                                    {raw_gradient.data(), rows, shape.heads, shape.heads},
                                                    vector(0),
                                                    vector(1),
                                                    vector(2),
                                                    false},
                                                   memory);
  }

  Columns<T> matrix(std::vector<T>& values) { return {values.data(), rows, inner, inner}; }
  /// x, B or C of a mixed matrix.
  Columns<T> part(std::vector<T>& values, int which) {
    return {values.data() + (which == 0 ? 0 : inner + (which - 1) * group), rows, which == 0 ? inner : group,
            mixed_columns};
  }
  kernels::StateSpaceInputs<Space, T> inputs() {
    const auto vector = [&](const std::vector<T>& values) {
      return backend::Vector<const T, Space>(values.data(), values.size());
    };
    return {
        part(mixed, 0),    part(mixed, 1),    part(mixed, 2), {raw.data(), rows, shape.heads, shape.heads},
        vector(step_bias), vector(decay_log), vector(skip)};
  }
  kernels::StateSpaceSaved<Space, float> saved() {
    const auto view = [](std::vector<float>& values, std::int64_t count) {
      return backend::Matrix<float, Space>(values.data(), values.size() / static_cast<std::size_t>(count),
                                           count);
    };
    return {view(steps, rows), view(decays, rows), view(states, shape.head_dim * shape.state)};
  }
  impl::ScanOperands<T> operands() { return impl::scan_operands<Space, T>("", shape, inputs(), saved()); }

  StateSpaceShape shape;
  std::int64_t rows, inner, group, mixed_columns;
  std::vector<T> mixed, raw, step_bias, decay_log, skip, dy, output, mixed_gradient, raw_gradient;
  std::vector<float> steps, decays, states, workspace, parameter_gradients;
};

/// The gradient of each decay's logarithm, by the sums that the step gradients' kernel forms.
std::vector<double> decay_gradients(Scan& scan, const impl::ScanGradientArrays<float>& arrays) {
  const auto of = scan.operands();
  std::vector<double> result(scan.steps.size());
  for (std::int64_t item = 0; item < of.chunk_items() * scan.shape.heads; ++item) {
    const auto at = of.place(item, scan.shape.heads);
    const std::int64_t begin = at.lane * scan.rows + at.row;
    double sum = arrays.carries[item], leaving = 0;
    for (std::int64_t t = at.count - 1; t >= 0; --t) {
      sum += arrays.decay_gradients[begin + t];
      if (arrays.column_products != nullptr)
        for (std::int64_t tile = t / 64; tile * 64 < at.count; ++tile)
          sum -= arrays.column_products[tile * of.token_items() + begin + t];
      result[begin + t] = sum;
    }
    if (arrays.leaving_products == nullptr) continue;
    for (std::int64_t t = 0; t < at.count; ++t) {
      result[begin + t] += leaving;
      leaving += arrays.leaving_products[begin + t];
    }
  }
  return result;
}

/// Tokens of less than a tile, of whole ones, of chunks of one to four tiles that no length divides.
const std::vector<StateSpaceShape> shapes{{1, 40, 2, 64, 128, 1, 128, 0, 0},
                                          {1, 128, 1, 64, 128, 1, 64, 0, 0},
                                          {2, 200, 4, 64, 128, 2, 128, 0, 0},
                                          {1, 300, 2, 64, 128, 1, 256, 0, 0}};

/// Two results that are both rounded.
Tolerance twice() { return {2 * tolerance<T>().norm, 2 * tolerance<T>().largest}; }

void check(const StateSpaceShape& shape, unsigned seed) {
  CAPTURE(shape.tokens);
  CAPTURE(seed);
  Scan scan(shape);
  const auto of = scan.operands();
  const impl::ScanGradientArrays<float> portable(of, scan.workspace.data(), false);
  std::vector<float> memory(scan.workspace.size(), std::nanf(""));
  const impl::ScanGradientArrays<float> arrays(of, memory.data(), true);
  std::vector<T> states(scan.states.size()), state_gradients(scan.states.size()), output(scan.output.size()),
      gradient(scan.mixed.size());
  const std::int64_t tiles = (of.width + 63) / 64;

  EmulatedTeams teams(seed);
  const impl::TileScores<Units> scores{{}, of, arrays.scores, tiles};
  teams.launch(of.chunk_items() * shape.groups * tiles * tiles, scores.scratch_bytes, scores);
  const impl::TileWalk<false, Units> forward{
      {}, of, {of.x, scan.matrix(output), states.data(), arrays.scores, nullptr, nullptr}};
  teams.launch(shape.batch * shape.heads, forward.scratch_bytes, forward);
  check_close(doubles(output), doubles(scan.output), twice());
  check_close(doubles(states), doubles(scan.states), twice());

  const Columns<const T> dy = scan.matrix(scan.dy);
  const impl::TileWalk<true, Units> backward{{},
                                             of,
                                             {dy, scan.part(gradient, 0), state_gradients.data(),
                                              arrays.scores, arrays.input_products, arrays.skip_products}};
  teams.launch(shape.batch * shape.heads, backward.scratch_bytes, backward);
  const impl::GroupTiles<false, Units> c{
      {},
      of,
      {dy, scan.part(gradient, 2), states.data(), arrays.scores, arrays.score_gradients,
       arrays.decay_gradients, arrays.column_products},
      tiles};
  teams.launch(of.chunk_items() * shape.groups * tiles, c.scratch_bytes, c);
  const impl::GroupTiles<true, Units> b{{},
                                        of,
                                        {dy, scan.part(gradient, 1), state_gradients.data(), arrays.scores,
                                         arrays.score_gradients, arrays.leaving_products, nullptr},
                                        tiles};
  teams.launch(of.chunk_items() * shape.groups * tiles, b.scratch_bytes, b);
  check_close(doubles(gradient), doubles(scan.mixed_gradient), twice());
  const std::vector<float> portable_states(portable.state_gradients,
                                           portable.state_gradients + scan.states.size());
  check_close(doubles(state_gradients), doubles(portable_states), twice());

  for (std::int64_t item = 0; item < of.chunk_items() * shape.heads; ++item) {
    const auto at = of.place(item, shape.heads);
    float total = 0;
    for (std::int64_t i = of.state_begin(at, at.lane); i < of.state_begin(at, at.lane) + of.state_elements();
         ++i)
      total += static_cast<float>(states[static_cast<std::size_t>(i)]) *
               static_cast<float>(state_gradients[static_cast<std::size_t>(i)]);
    arrays.carries[item] = total * std::exp(of.decays_of(at, at.lane)[at.count - 1]);
  }
  // Far closer than bfloat16 is: what would cancel cancels exactly.
  check_close(decay_gradients(scan, arrays), decay_gradients(scan, portable), {1e-3, 2e-3});
}

}  // namespace

TEST_CASE(
    "the tiles of a scan on matrix units give what the portable kernels give, whatever the order of the "
    "warps") {
  for (const StateSpaceShape& shape : shapes)
    for (const unsigned seed : {1U, 2U}) check(shape, seed);
}

#endif
