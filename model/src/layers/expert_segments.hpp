// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensor_parallel.hpp"

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
  bool exchanges;                          ///< whether tokens go to the ranks that share the experts
  ExpertDispatch dispatch;                 ///< how they do
  std::int64_t ranks;                      ///< that share the experts
  std::int64_t local_experts, first_local_expert;
  std::int64_t slots;     ///< for choices sent to one rank
  std::int64_t rows;      ///< kept for all experts of this rank
  std::int64_t capacity;  ///< of an expert; 0: no token is dropped
  kernels::RouterRules rules;
  kernels::ExpertActivation activation;
  bool inputs_first;  ///< weights of the experts lie as [inputs, outputs]
  bool first_term;    ///< whether this tensor rank's term has what all tensor ranks have alike
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

/// What kernels::dispatch writes.
struct DispatchBuffers {
  BufferId begins, ends, source, row_of, needed, workspace;

  std::vector<BufferId> all() const { return {begins, ends, source, row_of, needed, workspace}; }

  template <class Space>
  void fill(Execution<Space>& x, BufferId experts, std::int64_t capacity) const {
    const kernels::ExpertRows<Space> rows{
        x.template vector<std::int32_t>(begins), x.template vector<std::int32_t>(ends),
        x.template vector<std::int32_t>(source), x.template matrix<std::int32_t>(row_of),
        x.template pointer<std::int32_t>(needed)};
    kernels::dispatch<Space>(x.stream(), x.template matrix<const std::int32_t>(experts), capacity, rows,
                             x.template matrix<std::int32_t>(workspace));
  }
};

/// For `tokens` with `topk` choices each among `experts`, in `rows` rows. `needed`: [1], a new buffer unless given.
template <class Space, class T, class G>
DispatchBuffers add_dispatch(StackBuilder<Space, T, G>& builder, const std::string& name, std::int64_t tokens,
                             std::int64_t topk, std::int64_t experts, std::int64_t rows,
                             std::optional<BufferId> needed) {
  const auto add = [&](const char* suffix, std::vector<std::int64_t> extents) {
    return builder.template add<std::int32_t>(name + suffix, std::move(extents));
  };
  DispatchBuffers buffers{};
  buffers.begins = add("/begins", {experts});
  buffers.ends = add("/ends", {experts});
  buffers.source = add("/source", {rows});
  buffers.row_of = add("/row_of", {tokens, topk});
  buffers.needed = needed ? *needed : add("/needed", {1});
  buffers.workspace = add("/dispatch_workspace", {kernels::dispatch_workspace_rows(tokens, topk), experts});
  return buffers;
}

/// The segment of a collective. `what` is `moe_dispatch` or `moe_return`.
template <class Space, class T, class G>
Segment exchange_segment(const StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                         const std::string& what) {
  return segment_of_layer(builder.prefix(place.microbatch) + "layer." + std::to_string(place.layer) + "/" +
                              what + "/" + place.suffix,
                          Module::comm, place.phase, place.layer, place.microbatch);
}

// Forward and recompute. `name` is the prefix of new buffers.
template <class Space, class T, class G>
void append_expert_router(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                          const std::string& name, ExpertBuffers& b, bool counts);
/// Brings tokens to their experts' ranks; where one rank has all experts, nothing is to be done for that.
template <class Space, class T, class G>
void append_expert_arrival(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                           const std::string& name, ExpertBuffers& b);
template <class Space, class T, class G>
void append_expert_preprocess(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                              const std::string& name, ExpertBuffers& b);
template <class Space, class T, class G>
void append_expert_products(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                            const std::string& name, ExpertBuffers& b, bool with_outputs);
/// Brings the outputs back to their tokens' ranks.
template <class Space, class T, class G>
void append_expert_return(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                          const std::string& name, ExpertBuffers& b);
template <class Space, class T, class G>
void append_expert_combine(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                           const std::string& name, const ExpertBuffers& b);

/// What the backward segments hand on to each other.
struct ExpertGradients {
  BufferId output;                ///< [N, hidden] of what the block adds to the residual stream
  BufferId rows;                  ///< [R, hidden] of the experts' outputs, then of their inputs
  BufferId weights;               ///< [N, K] of the router's weights
  BufferId normalized;            ///< [N, hidden]
  BufferId arrived_weights;       ///< as ExpertTokens::weights
  std::optional<BufferId> slots;  ///< [slots, hidden]: of the outputs for choices that this rank sent
};

/// Fills gradients.output.
template <class Space, class T, class G>
void append_expert_combine_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                    const std::string& name, const ExpertBuffers& b,
                                    ExpertGradients& gradients, BufferId residual);
/// Brings the gradients of outputs to the experts' ranks.
template <class Space, class T, class G>
void append_expert_return_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                   const std::string& name, const ExpertBuffers& b,
                                   const ExpertGradients& gradients);
template <class Space, class T, class G>
void append_expert_products_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                     const std::string& name, const ExpertBuffers& b,
                                     const ExpertGradients& gradients);
/// Brings the gradients of tokens and of their weights back to the tokens' ranks.
template <class Space, class T, class G>
void append_expert_arrival_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
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
