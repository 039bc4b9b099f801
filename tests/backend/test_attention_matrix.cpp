// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/space.hpp>

// On a GPU test_attention_cuda.cpp runs these kernels. Here their warps are emulated, which nvcc would take for a call
// of host functions from a device.
#if !defined(KOKKOS_ENABLE_CUDA) && defined(KOKKOS_ENABLE_SERIAL)

#include "../../backend/src/attention_matrix_backward.hpp"
#include "../../backend/src/attention_matrix_forward.hpp"

#include "attention_problem.hpp"
#include "attention_rotations.hpp"
#include "emulated_warps.hpp"

#include <doctest/doctest.h>

using namespace encore::tests;

namespace {

using Space = Kokkos::Serial;
using Units = EmulatedTeams::Units;

/// The kernels in place of an Attention's engines.
template <class Forward, class Backward>
struct EmulatedAttention {
  unsigned seed;

  template <class T>
  std::size_t workspace_bytes(const AttentionShape& shape, const AttentionDropout&) const {
    return static_cast<std::size_t>(shape.batch * shape.heads * impl::padded_tokens(shape.tokens)) * 2 *
           sizeof(float);
  }
  template <class T>
  void forward(Stream<Space>&, const AttentionShape& shape, const AttentionDropout& dropout,
               HeadsOperand<const T> query, HeadsOperand<const T> key, HeadsOperand<const T> value,
               HeadsOperand<T> output, float* log_sum_exp, const float* sinks,
               const AttentionRotation<float>& rotation) {
    EmulatedTeams teams(seed, Forward::threads);
    teams.launch(Forward::teams(shape), Forward::scratch_bytes,
                 Forward{{shape, dropout, query, key, value, output, log_sum_exp, sinks}, rotation});
  }
  template <class T>
  void backward(Stream<Space>&, const AttentionShape& shape, const AttentionDropout& dropout,
                HeadsOperand<const T> query, HeadsOperand<const T> key, HeadsOperand<const T> value,
                HeadsOperand<const T> output, const float* log_sum_exp, HeadsOperand<const T> output_gradient,
                HeadsOperand<T> query_gradient, HeadsOperand<T> key_gradient, HeadsOperand<T> value_gradient,
                std::byte* workspace, const AttentionRotation<float>& rotation) {
    const impl::AttentionBackward<T> operands{
        shape,        dropout,        query,           key,
        value,        output,         output_gradient, query_gradient,
        key_gradient, value_gradient, log_sum_exp,     reinterpret_cast<float*>(workspace)};
    if (!Backward::describes) {
      using Describe = impl::DescribeQueries<Backward::head_dim, Units>;
      EmulatedTeams(seed, Describe::threads).launch(Describe::teams(shape), 0, Describe{operands});
    }
    EmulatedTeams teams(seed, Backward::threads);
    teams.launch(Backward::teams(shape), Backward::scratch_bytes, Backward{operands, rotation});
  }
};

struct Case {
  AttentionShape shape;
  HeadsLayout layout = HeadsLayout::packed;
};

/// Tails of all tiles; groups; windows that begin within tiles and before the first; sinks.
std::vector<Case> cases(std::int64_t head_dim) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  return {
      {{1, 1, 1, 1, head_dim, scale}},
      {{2, 15, 2, 1, head_dim, scale}, HeadsLayout::apart},
      {{1, 70, 2, 1, head_dim, 0.3F}},
      {{1, 150, 1, 1, head_dim, scale, 37, true}, HeadsLayout::by_head},
  };
}

template <class Forward, class Backward>
void check(std::int64_t head_dim) {
  Stream<Space> stream;
  for (const Case& c : cases(head_dim)) {
    CAPTURE(c.shape.tokens);
    CAPTURE(c.shape.window);
    CAPTURE(Forward::queries);
    CAPTURE(Backward::rows);
    const AttentionProblem<bfloat16> problem(c.shape, c.layout);
    const AttentionResults expected = reference_attention(problem);
    AttentionResults first;
    for (const unsigned seed : {1U, 2U}) {
      if (seed == 2 && c.shape.tokens != 70) continue;
      EmulatedAttention<Forward, Backward> attention{seed};
      AttentionBuffers<Space, bfloat16> buffers(stream, problem);
      buffers.forward(attention);
      buffers.backward(attention);
      const AttentionResults results = buffers.results();
      CHECK(relative_error(results.output, expected.output) <= 1e-2);
      CHECK(relative_error(results.log_sum_exp, expected.log_sum_exp) <= 1e-4);
      CHECK(relative_error(results.value_gradient, expected.value_gradient) <= 1e-2);
      CHECK(relative_error(results.query_gradient, expected.query_gradient) <= 1e-2);
      CHECK(relative_error(results.key_gradient, expected.key_gradient) <= 1e-2);
      if (seed == 1)
        first = results;
      else
        CHECK(same_bits(results, first));
    }
  }
}

using Forward = impl::MatrixAttentionForward<64, 1, 1, 4, 32, Units>;
using Backward = impl::MatrixAttentionBackward<64, 1, 4, 16, true, Units>;

}  // namespace

TEST_CASE("attention on matrix units turns queries and keys, and their gradients back") {
  const AttentionShape shape{2, 33, 2, 1, 64, 0.125F};
  Stream<Space> stream;
  EmulatedAttention<Forward, Backward> attention{1};
  check_rotations(stream, attention, shape);
}

TEST_CASE("attention on matrix units agrees with the definition, whatever the order of the warps") {
  check<impl::MatrixAttentionForward<64, 2, 2, 2, 32, Units>,
        impl::MatrixAttentionBackward<64, 4, 1, 64, false, Units>>(64);
  check<Forward, Backward>(64);
  check<impl::MatrixAttentionForward<128, 1, 4, 1, 64, Units>,
        impl::MatrixAttentionBackward<128, 2, 2, 16, false, Units>>(128);
}

#endif
