// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_problem.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace encore::tests {

/// Checks that an engine which turns heads gives what it gives with queries and keys turned beforehand and their
/// gradients turned back afterwards. `attention` has forward and backward as backend::Attention does.
template <class Space, class Engine>
void check_rotations(backend::Stream<Space>& stream, Engine& attention,
                     const backend::AttentionShape& shape) {
  AttentionBuffers<Space, bfloat16> buffers(stream, AttentionProblem<bfloat16>(shape, HeadsLayout::packed));
  buffers.forward(attention);
  buffers.backward(attention);
  const AttentionResults plain = buffers.results();
  for (const bool interleaved : std::vector<bool>{false, true}) {
    buffers.upload();
    buffers.forward(attention);
    buffers.backward(attention, {}, buffers.rotation(interleaved));
    const AttentionResults back = buffers.results();
    CHECK(back.value_gradient == plain.value_gradient);
    CHECK(relative_error(back.query_gradient, turned(plain.query_gradient, shape, interleaved, -1)) <= 4e-3);
    CHECK(relative_error(back.key_gradient, turned(plain.key_gradient, shape, interleaved, -1)) <= 4e-3);
    // The inputs turned beforehand, against those that are turned when they are read.
    AttentionProblem<bfloat16> before(shape, HeadsLayout::packed);
    before.query = turned(before.query, shape, interleaved, 1);
    before.key = turned(before.key, shape, interleaved, 1);
    AttentionBuffers<Space, bfloat16> given(stream, before);
    given.forward(attention);
    given.backward(attention, {}, given.rotation(interleaved));
    const AttentionResults expected = given.results();
    buffers.upload();
    const auto rotation = buffers.rotation(interleaved, true);
    buffers.forward(attention, {}, rotation);
    buffers.backward(attention, {}, rotation);
    const AttentionResults results = buffers.results();
    CHECK(relative_error(results.output, expected.output) <= 4e-3);
    CHECK(relative_error(results.log_sum_exp, expected.log_sum_exp) <= 1e-3);
    CHECK(relative_error(results.value_gradient, expected.value_gradient) <= 4e-3);
    CHECK(relative_error(results.query_gradient, expected.query_gradient) <= 1e-2);
    CHECK(relative_error(results.key_gradient, expected.key_gradient) <= 1e-2);
  }
}

}  // namespace encore::tests
