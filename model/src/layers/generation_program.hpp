// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/program.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <cstdint>
#include <optional>

namespace encore::model {

/// What a step of generation works on.
struct GenerationShape {
  std::int64_t sequences;
  std::int64_t tokens;    ///< of a sequence in a step
  std::int64_t capacity;  ///< positions that the caches hold
  bool samples;           ///< the step ends with logits and the next token, for which it must have one token
};

/// A step of generation as a program. All buffers but activations are the caller's: programs of one model and capacity
/// with different tokens share them.
template <class Space>
struct GenerationProgram {
  graph::Program<Space> program;
  graph::BufferId parameters;              ///< [ParameterLayout::elements()]
  graph::BufferId rope_cosine, rope_sine;  ///< [capacity, head_dim / 2]; empty without rotary positions
  graph::BufferId tokens;                  ///< [sequences, capacity] int32
  graph::BufferId first, count;  ///< [sequences] int32, kernels::DecodeRows; the step advances `first`
  graph::BufferId keys, values;  ///< [layers with attention, sequences, capacity, kv_heads, head_dim]
  graph::BufferId windows;       ///< [layers with Mamba, sequences, width - 1, channels]
  graph::BufferId states;        ///< [layers with Mamba, sequences, heads, head_dim, state]
  graph::BufferId settings;      ///< bytes of kernels::SamplingSettings
  std::optional<graph::BufferId> expert_bias;
  std::optional<graph::BufferId> logits;  ///< [sequences, vocab] float
  /// Inputs of training steps that the layers' common code declares and generation never touches.
  std::vector<graph::BufferId> unused;
};

/// T is the type of weights, activations and caches. Kernels of the training step's forward pass, but for attention and
/// Mamba, which read what came before from the caches. The device is asked for workspace sizes only.
template <class Space, class T>
GenerationProgram<Space> build_generation_program(backend::Device<Space>& device,
                                                  const ModelConfiguration& model,
                                                  const ParameterLayout& layout,
                                                  const GenerationShape& shape);

}  // namespace encore::model
