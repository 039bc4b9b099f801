// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/attention_shape.hpp>
#include <encore/backend/stream.hpp>

#include <cstdint>
#include <memory>

namespace encore::backend {

enum class AttentionEngine { portable, matrix_units, cudnn };

/// Causal attention with grouped queries, softmax(scale * Q K^T + causal mask) V, forward and backward; with a
/// sliding window, and with sinks (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023), if
/// the shape says so.
/// portable: a tiled kernel with online softmax (Dao et al., "FlashAttention", 2022, algorithms 1 and 4; and
/// "FlashAttention-2", 2023) on every backend and type. matrix_units: the same in tiles for the matrix units of a GPU,
/// bfloat16 on CUDA without dropout, head_dim 64 or 128; one launch each way; chosen for short sequences. cudnn: fused
/// attention of cuDNN, bfloat16 on CUDA without dropout, head_dim a multiple of 8 up to 128; deterministic backward.
/// All save the natural logarithm of sum over keys of exp(scale * q k), and exp(sink) where there are sinks, so one
/// engine's forward serves the other's backward, and backward needs no sinks.
/// Plans of cuDNN are made when a shape is first asked about or primed (seconds), and kept.
template <class Space>
class Attention {
 public:
  explicit Attention(Stream<Space>& stream);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  /// The engine that forward and backward will use for these, given operands whose addresses and strides are
  /// multiples of 16 bytes (others go to the portable engine). May be called before any operand exists.
  template <class T>
  AttentionEngine engine(const AttentionShape& shape, const AttentionDropout& dropout) const;

  /// Whether backward takes a rotation, of queries and keys that are turned already: the matrix units' engine does.
  template <class T>
  bool rotates_gradients(const AttentionShape& shape, const AttentionDropout& dropout) const;
  /// Whether forward and backward take a rotation of queries and keys that are not turned yet, and turn them, rounded,
  /// as they read them: the matrix units' engine does where so few tokens are read so few times that this is quicker.
  template <class T>
  bool rotates_inputs(const AttentionShape& shape, const AttentionDropout& dropout) const;

  /// Uses only this engine from now on, for comparing them. Throws DeviceError when it is not available.
  void force(AttentionEngine engine);

  /// Scratch bytes that `backward` needs for this shape; forward needs none from the caller. On Hopper cuDNN's
  /// deterministic backward keeps the scores' gradients: 2 * batch * heads * tokens^2 bytes.
  template <class T>
  std::size_t workspace_bytes(const AttentionShape& shape, const AttentionDropout& dropout) const;

  /// Sets output (b, t, h, d) and log_sum_exp [batch, heads, tokens] float (double for double), which backward
  /// reads. `sinks` [heads] is there exactly if the shape says so. A rotation only of inputs. May be captured after a prime. Throws
  /// InternalError for an impossible shape, DeviceError when cuDNN fails.
  template <class T>
  void forward(Stream<Space>& stream, const AttentionShape& shape, const AttentionDropout& dropout,
               HeadsOperand<const T> query, HeadsOperand<const T> key, HeadsOperand<const T> value,
               HeadsOperand<T> output, Accumulator<T>* log_sum_exp, const Accumulator<T>* sinks = nullptr,
               const AttentionRotation<Accumulator<T>>& rotation = {});

  /// Gradients of the three inputs are set, not added to; that of the sinks is left to the caller, who has all that
  /// it takes: -exp(sink - log_sum_exp) times the dot of output and its gradient, summed over batch and tokens.
  /// With a rotation the gradients of queries and keys are turned back, once they are rounded: they are those of what
  /// was turned; only where rotates_gradients says so. Deterministic: no atomics. `workspace` as told above.
  /// May be captured and throws as forward does.
  template <class T>
  void backward(Stream<Space>& stream, const AttentionShape& shape, const AttentionDropout& dropout,
                HeadsOperand<const T> query, HeadsOperand<const T> key, HeadsOperand<const T> value,
                HeadsOperand<const T> output, const Accumulator<T>* log_sum_exp,
                HeadsOperand<const T> output_gradient, HeadsOperand<T> query_gradient,
                HeadsOperand<T> key_gradient, HeadsOperand<T> value_gradient, std::byte* workspace,
                const AttentionRotation<Accumulator<T>>& rotation = {});

 private:
  struct Implementation;
  std::shared_ptr<Implementation> implementation_;  ///< also of the graphs that it was recorded in
};

}  // namespace encore::backend
