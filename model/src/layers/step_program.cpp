// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/pipeline_schedule.hpp>

#include <utility>
#include <variant>

#include "tensor_parallel.hpp"

namespace encore::model {

namespace {

/// Appends one pass after the other.
template <class Space, class T, class G>
class Passes {
 public:
  Passes(StackBuilder<Space, T, G>& builder, const PipelineShape& pipeline)
      : builder_(builder),
        pipeline_(pipeline),
        blocks_(blocks_of_layers(builder.model)),
        layers_of_chunk_(builder.model.layers / pipeline.chunks()),
        microbatches_(static_cast<std::size_t>(pipeline.microbatches)) {}

  void append(const PipelinePass& pass) {
    if (pass.kind == PassKind::forward) {
      forward(pass.microbatch, pass.chunk);
    } else if (builder_.training()) {
      backward(pass.microbatch, pass.chunk);
    }
  }

 private:
  using BlockBuffers = std::variant<AttentionBuffers, MlpBuffers, ExpertBuffers, MambaBuffers>;
  using Layer = std::vector<BlockBuffers>;
  struct Delayed {
    std::int64_t layer;
    Module module;
    std::vector<LinearGradient> gradients;
  };
  /// What the passes of a microbatch hand on to each other.
  struct Microbatch {
    EmbeddingBuffers embedding;
    std::vector<Layer> layers;
    HeadBuffers head;
    BufferId stream;    ///< the residual stream as far as it has come
    BufferId residual;  ///< its gradient
  };

  void forward(std::int64_t number, std::int64_t chunk) {
    Microbatch& microbatch = microbatches_[static_cast<std::size_t>(number)];
    if (chunk == 0) {
      microbatch.embedding = append_embedding_forward(builder_, number);
      if (has_block(builder_.model, Block::experts)) append_live_tokens(builder_, number);
      microbatch.stream = microbatch.embedding.result;
    }
    for (std::int64_t layer = chunk * layers_of_chunk_; layer < (chunk + 1) * layers_of_chunk_; ++layer) {
      Layer& buffers = microbatch.layers.emplace_back();
      for (const Block block : blocks_[static_cast<std::size_t>(layer)]) {
        buffers.push_back(block_forward(number, layer, block, microbatch.stream));
        microbatch.stream = std::visit([](const auto& of) { return of.result; }, buffers.back());
      }
    }
    if (chunk == pipeline_.chunks() - 1)
      microbatch.head = append_head_forward(builder_, number, microbatch.stream);
  }

  void backward(std::int64_t number, std::int64_t chunk) {
    Microbatch& microbatch = microbatches_[static_cast<std::size_t>(number)];
    if (chunk == pipeline_.chunks() - 1) {
      microbatch.residual = builder_.template add<T>(builder_.prefix(number) + "residual_gradient",
                                                     {builder_.stream_tokens(), builder_.model.hidden});
      append_head_backward(builder_, number, microbatch.head, microbatch.residual);
    }
    for (std::int64_t layer = (chunk + 1) * layers_of_chunk_ - 1; layer >= chunk * layers_of_chunk_; --layer)
      layer_backward(number, layer, microbatch.layers[static_cast<std::size_t>(layer)], microbatch.residual);
    if (chunk == 0) {
      append_embedding_backward(builder_, number, microbatch.embedding, microbatch.residual);
      microbatch = {};
    }
    for (Delayed& delayed : delayed_)
      append_weight_gradients(builder_, number, delayed.layer, delayed.module, std::move(delayed.gradients));
    delayed_.clear();
  }

  BlockBuffers block_forward(std::int64_t number, std::int64_t layer, Block block, BufferId input) {
    switch (block) {
      case Block::attention: return append_attention_forward(builder_, number, layer, input, 0);
      case Block::windowed_attention:
        return append_attention_forward(builder_, number, layer, input, builder_.model.sliding_window);
      case Block::mlp: return append_mlp_forward(builder_, number, layer, input);
      case Block::experts: return append_experts_forward(builder_, number, layer, input);
      case Block::mamba: return append_mamba_forward(builder_, number, layer, input);
    }
    throw InternalError("no such block");
  }

  void layer_backward(std::int64_t number, std::int64_t layer, Layer& blocks, BufferId residual) {
    // With whole layers, all but the last block are computed again with their results, which the next one reads.
    const bool full = builder_.recomputes(RecomputeModule::full);
    if (full)
      for (std::size_t index = 0; index < blocks.size(); ++index) {
        recompute(number, layer, blocks[index], index + 1 < blocks.size());
        if (index + 1 == blocks.size()) break;
        const BufferId result = std::visit([](const auto& of) { return of.result; }, blocks[index]);
        std::visit([&](auto& of) { of.input = result; }, blocks[index + 1]);
      }
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      if (!full &&
          std::visit([&](const auto& of) { return builder_.recomputes(recompute_module(of)); }, *block))
        recompute(number, layer, *block, false);
      std::visit([&](const auto& of) { delay(layer, module(of), backward(number, layer, of, residual)); },
                 *block);
    }
  }

  static Module module(const AttentionBuffers&) { return Module::attn; }
  static Module module(const MlpBuffers&) { return Module::mlp; }
  static Module module(const ExpertBuffers&) { return Module::moe_experts; }
  static Module module(const MambaBuffers&) { return Module::mamba; }
  static RecomputeModule recompute_module(const AttentionBuffers&) { return RecomputeModule::attn; }
  static RecomputeModule recompute_module(const MlpBuffers&) { return RecomputeModule::mlp; }
  static RecomputeModule recompute_module(const ExpertBuffers&) { return RecomputeModule::moe; }
  static RecomputeModule recompute_module(const MambaBuffers&) { return RecomputeModule::mamba; }

  std::vector<LinearGradient> backward(std::int64_t number, std::int64_t layer, const AttentionBuffers& of,
                                       BufferId residual) {
    return append_attention_backward(builder_, number, layer, of, residual);
  }
  std::vector<LinearGradient> backward(std::int64_t number, std::int64_t layer, const MlpBuffers& of,
                                       BufferId residual) {
    return append_mlp_backward(builder_, number, layer, of, residual);
  }
  std::vector<LinearGradient> backward(std::int64_t number, std::int64_t layer, const MambaBuffers& of,
                                       BufferId residual) {
    return append_mamba_backward(builder_, number, layer, of, residual);
  }
  std::vector<LinearGradient> backward(std::int64_t number, std::int64_t layer, const ExpertBuffers& of,
                                       BufferId residual) {
    append_experts_backward(builder_, number, layer, of, residual);
    return {};
  }

  void recompute(std::int64_t number, std::int64_t layer, BlockBuffers& block, bool with_result) {
    block = std::visit(
        [&](const auto& of) -> BlockBuffers { return recomputed(number, layer, of, with_result); }, block);
  }
  AttentionBuffers recomputed(std::int64_t number, std::int64_t layer, const AttentionBuffers& of,
                              bool with_result) {
    return append_attention_recompute(builder_, number, layer, of, with_result);
  }
  MlpBuffers recomputed(std::int64_t number, std::int64_t layer, const MlpBuffers& of, bool with_result) {
    return append_mlp_recompute(builder_, number, layer, of, with_result);
  }
  MambaBuffers recomputed(std::int64_t number, std::int64_t layer, const MambaBuffers& of, bool with_result) {
    return append_mamba_recompute(builder_, number, layer, of, with_result);
  }
  ExpertBuffers recomputed(std::int64_t number, std::int64_t layer, const ExpertBuffers& of,
                           bool with_result) {
    return append_experts_recompute(builder_, number, layer, of, with_result);
  }

  void delay(std::int64_t layer, Module module, std::vector<LinearGradient> gradients) {
    if (!gradients.empty()) delayed_.push_back({layer, module, std::move(gradients)});
  }

  StackBuilder<Space, T, G>& builder_;
  PipelineShape pipeline_;
  std::vector<std::vector<Block>> blocks_;
  std::int64_t layers_of_chunk_;
  std::vector<Microbatch> microbatches_;
  std::vector<Delayed> delayed_;
};

}  // namespace

template <class Space, class T, class G>
StepProgram<Space> build_step_program(backend::Device<Space>& device, const ModelConfiguration& model,
                                      const ParameterLayout& layout, const StepShape& shape) {
  const PipelineShape pipeline{shape.pipeline, shape.virtual_stages, shape.microbatches};
  require(pipeline.chunks() > 0 && model.layers % pipeline.chunks() == 0,
          "the layers cannot be dealt out evenly to the chunks of the pipeline");
  StackBuilder<Space, T, G> builder(device, model, layout, shape);
  append_label_count(builder);
  const bool reduces = shape.training && builder.is_in(RankGroup::data);
  if (reduces) append_label_count_of_all_ranks(builder);
  Passes<Space, T, G> passes(builder, pipeline);
  for (const PipelinePass& pass : merged_order(pipeline)) passes.append(pass);
  if (shape.training) insert_sums_over_tensor_ranks(builder);
  if (reduces) {
    append_metrics_of_all_ranks(builder);
    insert_gradient_reductions(builder);
  }
  if (shape.training) append_optimizer(builder, shape);
  return std::move(builder.step);
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                        \
  template StepProgram<SPACE> build_step_program<SPACE, T, G>( \
      backend::Device<SPACE>&, const ModelConfiguration&, const ParameterLayout&, const StepShape&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
