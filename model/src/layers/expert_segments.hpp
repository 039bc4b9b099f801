// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "operations.hpp"

#include <encore/kernels/dispatch.hpp>
#include <encore/kernels/expert_activation.hpp>
#include <encore/kernels/router.hpp>

// The segments that a block of experts consists of, so that each can be recorded apart. Shared expert and
// normalization go with the router, as in Megatron-Core.

namespace encore::model {

/// Sizes and rules that the bodies of these segments need.
struct ExpertGeometry {
  std::int64_t tokens, hidden, experts;
  std::int64_t ffn, raised;                ///< columns of an expert after and before the activation
  std::int64_t shared_ffn, shared_raised;  ///< the same of the shared expert
  std::int64_t rows;                       ///< kept for all experts
  std::int64_t capacity;                   ///< of an expert; 0: no token is dropped
  kernels::RouterRules rules;
  kernels::ExpertActivation activation;
  bool inputs_first;  ///< weights of the experts lie as [inputs, outputs]
  double epsilon;
};

template <class Space, class T, class G>
ExpertGeometry expert_geometry(const StackBuilder<Space, T, G>& builder);

/// Where a segment stands: `name` is its prefix, such as `layer.3/moe_router`.
struct ExpertPlace {
  std::int64_t microbatch;
  std::int64_t layer;
  Phase phase;
  std::string suffix;  ///< `forward`, `recompute` or `backward`

  Segment segment(const std::string& prefix, Module module) const {
    return segment_of_layer(
        prefix + "layer." + std::to_string(layer) + "/" + std::string(name_of(module)) + "/" + suffix, module,
        phase, layer, microbatch);
  }
};

/// The rows of the experts as kernels take them, for writing (dispatch alone) or reading.
template <class Space>
kernels::ExpertRows<Space> expert_rows_of(Execution<Space>& x, const ExpertBuffers& b) {
  return {x.template vector<std::int32_t>(b.begins), x.template vector<std::int32_t>(b.ends),
          x.template vector<std::int32_t>(b.source), x.template matrix<std::int32_t>(b.row_of),
          x.template pointer<std::int32_t>(b.rows_needed)};
}

// Forward and recompute. `name` is the prefix of new buffers.
template <class Space, class T, class G>
void append_expert_router(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                          const std::string& name, ExpertBuffers& b, bool counts);
template <class Space, class T, class G>
void append_expert_preprocess(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                              const std::string& name, ExpertBuffers& b);
template <class Space, class T, class G>
void append_expert_products(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                            const std::string& name, ExpertBuffers& b, bool with_outputs);
template <class Space, class T, class G>
void append_expert_combine(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                           const std::string& name, const ExpertBuffers& b);

/// What the backward segments hand on to each other.
struct ExpertGradients {
  BranchGradient output;  ///< of what the block adds to the residual stream
  BufferId rows;          ///< [R, hidden] of the experts' outputs, then of their inputs
  BufferId weights;       ///< [N, K] of the router's weights
  BufferId normalized;    ///< [N, hidden]
};

template <class Space, class T, class G>
void append_expert_combine_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                    const ExpertBuffers& b, const ExpertGradients& gradients,
                                    BufferId residual);
template <class Space, class T, class G>
void append_expert_products_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                     const std::string& name, const ExpertBuffers& b,
                                     const ExpertGradients& gradients);
template <class Space, class T, class G>
void append_expert_preprocess_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                       const ExpertBuffers& b, const ExpertGradients& gradients);
template <class Space, class T, class G>
void append_expert_router_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                   const std::string& name, const ExpertBuffers& b,
                                   const ExpertGradients& gradients, BufferId residual);

}  // namespace encore::model
