// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace encore::backend::impl {

/// Strides of one [batch, heads, tokens, head_dim] operand, in elements.
struct CudnnStrides {
  std::int64_t batch, token, head;
};

/// Operands of the forward pass, then those that only the backward pass has.
enum CudnnOperand {
  query,
  key,
  value,
  output,
  output_gradient,
  query_gradient,
  key_gradient,
  value_gradient
};
inline constexpr int cudnn_forward_operands = 4;
inline constexpr int cudnn_operands = 8;

/// Rows of float beside them.
struct CudnnRows {
  float* log_sum_exp;  ///< [batch, heads, tokens]
  const float* sinks;  ///< [heads]; of the forward pass where the shape has them
};

/// A causal attention of bfloat16 that cuDNN may have a fused kernel for.
struct CudnnAttentionShape {
  std::int64_t batch, tokens, heads, kv_heads, head_dim;
  float scale;
  std::int64_t window;  ///< 0: none
  bool sinks;
  bool backward;
  std::array<CudnnStrides, cudnn_operands> strides;
};

/// cuDNN's fused attention. This header names neither cuDNN's types nor Kokkos', so that the one file behind it
/// is left to the host compiler: cudnn-frontend takes nvcc minutes.
class CudnnAttention {
 public:
  /// Throws DeviceError.
  CudnnAttention();
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// A built plan, kept for every shape; the backward one uses a deterministic algorithm. Null where cuDNN has none,
  /// with its reason in `refusal`. Seconds of host time at first use, and not to be made inside a capture.
  class Plan;
  Plan* plan(const CudnnAttentionShape& shape, std::string* refusal = nullptr);
  /// Whether `plan` knows the answer already.
  bool knows(const CudnnAttentionShape& shape) const;

  static std::size_t workspace_bytes(const Plan& plan);
  /// True once, before the plan's first run.
  static bool take_first_run(Plan& plan);
  /// Queues it on `stream`, a cudaStream_t. `data` in the order of CudnnOperand. May be captured. Throws
  /// DeviceError.
  void run(const Plan& plan, const std::array<void*, cudnn_operands>& data, const CudnnRows& rows,
           void* workspace, void* stream);

  /// Such as "cuDNN 9.19.0".
  std::string description() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace encore::backend::impl
