// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/philox.hpp>

#include <cstdint>

namespace encore::backend {

/// One of queries, keys, values, ...: element (b, t, h, d) is
/// data[b * batch_stride + t * token_stride + h * head_stride + d].
template <class T>
struct HeadsOperand {
  T* data;
  std::int64_t batch_stride;
  std::int64_t token_stride;
  std::int64_t head_stride;
};

struct AttentionShape {
  std::int64_t batch;
  std::int64_t tokens;    ///< per sequence; queries and keys alike
  std::int64_t heads;     ///< of the queries
  std::int64_t kv_heads;  ///< divides heads; query head h reads key head h / (heads / kv_heads)
  std::int64_t head_dim;  ///< at most 256
  float scale;            ///< usually 1 / sqrt(head_dim)
  /// Positions that a query sees: its own and the window - 1 before it. 0: all up to its own.
  std::int64_t window = 0;
  /// Whether each head has a sink: a logit, not scaled, that is part of the softmax's sum and has no value.
  bool sinks = false;

  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// What turns the queries and keys before their products: pair i of a head's entries at token t by the angle whose
/// cosine and sine the tables [at least tokens, head_dim / 2] hold at (t, i).
template <class A>
struct AttentionRotation {
  const A* cosine = nullptr;  ///< in the space's memory; null: nothing turned
  const A* sine = nullptr;
  bool interleaved = false;  ///< entries 2i and 2i + 1 are a pair; else i and i + head_dim / 2
  bool of_inputs = false;    ///< the queries and keys given are not turned yet
};

/// Dropout on the attention probabilities. Element (b, h, query, key) of the segment's draws belongs to the
/// probability at ((b * heads + h) * tokens + query) * tokens + key: it is dropped if its random_uniform is below
/// `probability`, else divided by 1 - probability. log_sum_exp and the softmax's sum are those without dropout.
struct AttentionDropout {
  const double* probability = nullptr;  ///< in the space's memory; null: no dropout
  const RandomState* state = nullptr;   ///< in the space's memory
  std::uint32_t segment = 0;
};

}  // namespace encore::backend
