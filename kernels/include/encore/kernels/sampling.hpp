// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/decode.hpp>

namespace encore::kernels {

/// How the next token is chosen from its logits; lies in device memory, and may change between replays.
struct SamplingSettings {
  double temperature = 0;  ///< 0: the largest logit, of equal ones that of the lowest token
  double top_p = 1;        ///< of the likeliest tokens as few as have this probability together; 1: all
  std::int64_t top_k = 0;  ///< as many of the likeliest tokens; 0: all
  std::uint64_t seed = 0;
};

/// Elements of the workspace of sample_tokens, in 8 bytes each.
std::int64_t sampling_workspace(std::int64_t sequences, std::int64_t vocabulary);

/// tokens[s, p + 1] = the token drawn from softmax(logits[s] / temperature), where p is the last position of the step
/// and p + 1 < capacity. top_k cuts first, then top_p what is left; equal logits are in order of their tokens, so the
/// sets are exact. The draw takes the largest of logit / temperature + a number of the Gumbel distribution, which is a
/// draw from the softmax (Gumbel, "Statistical Theory of Extreme Values", 1954): no sum depends on an order. Random
/// numbers depend on (seed, s, p, token) alone.
/// logits [sequences, vocabulary]; settings on the device; tokens [sequences, capacity]; rows as for decode_embedding,
/// a sequence without tokens gets none; workspace [sampling_workspace(...)]. May be captured.
template <class Space>
void sample_tokens(Stream<Space>& stream, const DecodeRows<Space>& rows, Matrix<const float, Space> logits,
                   const SamplingSettings* settings, Matrix<std::int32_t, Space> tokens,
                   Vector<std::uint64_t, Space> workspace);

}  // namespace encore::kernels
