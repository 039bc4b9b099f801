// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/philox.hpp>
#include <encore/backend/stream.hpp>

#include <cstdint>
#include <memory>

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
  std::int64_t tokens;   ///< per sequence; queries and keys alike
  std::int64_t heads;    ///< of the queries
  std::int64_t kv_heads; ///< divides heads; query head h reads key head h / (heads / kv_heads)
  std::int64_t head_dim; ///< at most 256
  float scale;           ///< usually 1 / sqrt(head_dim)
};

/// Dropout on the attention probabilities. Element (b, h, query, key) of the segment's draws belongs to the
/// probability at ((b * heads + h) * tokens + query) * tokens + key.
struct AttentionDropout {
  const double* probability = nullptr;  ///< in the space's memory; null: no dropout
  const RandomState* state = nullptr;   ///< in the space's memory
  std::uint32_t segment = 0;
};

enum class AttentionEngine { portable, cudnn };

/// Causal attention with grouped queries, softmax(scale * Q K^T + causal mask) V, forward and backward.
/// portable: a tiled kernel with online softmax (Dao et al., "FlashAttention", 2022, algorithms 1 and 4; and
/// "FlashAttention-2", 2023) on every backend and type. cudnn: fused attention of cuDNN, bfloat16 on CUDA
/// without dropout, head_dim a multiple of 8 up to 128; deterministic backward.
template <class Space>
class Attention {
 public:
  explicit Attention(Stream<Space>& stream);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  /// The engine that forward and backward will use for these.
  template <class T>
  AttentionEngine engine(const AttentionShape& shape, const AttentionDropout& dropout) const;

  /// Uses only this engine from now on, for comparing them. Throws DeviceError when it is not available.
  void force(AttentionEngine engine);

  /// Scratch bytes that `backward` needs for this shape, with either engine; forward needs none.
  template <class T>
  std::size_t workspace_bytes(const AttentionShape& shape, const AttentionDropout& dropout) const;

  /// output (b, t, h, d); log_sum_exp [batch, heads, tokens] float (double for double) is saved for backward.
  template <class T>
  void forward(Stream<Space>& stream, const AttentionShape& shape, const AttentionDropout& dropout,
               HeadsOperand<const T> query, HeadsOperand<const T> key, HeadsOperand<const T> value,
               HeadsOperand<T> output, Accumulator<T>* log_sum_exp);

  /// Gradients of the three inputs are set, not added to. Deterministic. `workspace` as told above.
  template <class T>
  void backward(Stream<Space>& stream, const AttentionShape& shape, const AttentionDropout& dropout,
                HeadsOperand<const T> query, HeadsOperand<const T> key, HeadsOperand<const T> value,
                HeadsOperand<const T> output, const Accumulator<T>* log_sum_exp,
                HeadsOperand<const T> output_gradient, HeadsOperand<T> query_gradient,
                HeadsOperand<T> key_gradient, HeadsOperand<T> value_gradient, std::byte* workspace);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace encore::backend
