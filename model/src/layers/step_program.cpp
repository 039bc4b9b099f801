// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/pipeline_schedule.hpp>
#include <encore/model/files/stage_schedule.hpp>

#include <utility>
#include <variant>

#include "pipeline_segments.hpp"
#include "tensor_parallel.hpp"

namespace encore::model {

namespace {

/// Appends one pass after the other: of all stages, or of one.
template <class Space, class T, class G>
class Passes {
 public:
  Passes(StackBuilder<Space, T, G>& builder, const PipelineShape& pipeline)
      : builder_(builder),
        pipeline_(pipeline),
        blocks_(blocks_of_layers(builder.model)),
        layers_of_chunk_(builder.model.layers / pipeline.chunks()),
        microbatches_(static_cast<std::size_t>(pipeline.microbatches)) {
    for (Microbatch& microbatch : microbatches_)
      microbatch.layers.resize(static_cast<std::size_t>(builder.model.layers));
  }

  /// All stages in turn.
  void append_all() {
    for (const PipelinePass& pass : merged_order(pipeline_)) {
      append(pass, 0);
      append_delayed();
    }
  }

  /// One stage, with its transfers.
  void append_stage(std::int64_t stage) {
    const std::vector<StageOperation> operations =
        builder_.training() ? stage_operations(pipeline_, stage) : forward_operations(pipeline_, stage);
    for (const StageOperation& operation : operations) {
      const bool hands_on = reader_of(pipeline_, operation.pass).has_value();
      switch (operation.kind) {
        case StageOperationKind::pass: append(operation.pass, stage); break;
        case StageOperationKind::send: send(operation.pass); break;
        case StageOperationKind::receive: receive(operation.pass); break;
      }
      // The next stage need not wait for weight gradients.
      if (operation.kind == (hands_on ? StageOperationKind::send : StageOperationKind::pass))
        append_delayed();
    }
  }

 private:
  using BlockBuffers = std::variant<AttentionBuffers, MlpBuffers, ExpertBuffers, MambaBuffers>;
  using Layer = std::vector<BlockBuffers>;
  struct Delayed {
    std::int64_t microbatch;
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

  Microbatch& microbatch_of(const PipelinePass& pass) {
    return microbatches_[static_cast<std::size_t>(pass.microbatch)];
  }

  void append(const PipelinePass& pass, std::int64_t first_chunk) {
    if (pass.kind == PassKind::forward) {
      forward(pass.microbatch, pass.chunk, first_chunk);
    } else if (builder_.training()) {
      backward(pass.microbatch, pass.chunk);
    }
  }

  void send(const PipelinePass& pass) {
    const Microbatch& microbatch = microbatch_of(pass);
    append_send(builder_, pass, pass.kind == PassKind::forward ? microbatch.stream : microbatch.residual,
                static_cast<int>(pipeline_.stage_of(reader_of(pipeline_, pass)->chunk)));
  }

  void receive(const PipelinePass& pass) {
    Microbatch& microbatch = microbatch_of(pass);
    (pass.kind == PassKind::forward ? microbatch.stream : microbatch.residual) =
        append_receive(builder_, pass, static_cast<int>(pipeline_.stage_of(pass.chunk)));
  }

  /// `first_chunk`: of those that this rank computes.
  void forward(std::int64_t number, std::int64_t chunk, std::int64_t first_chunk) {
    Microbatch& microbatch = microbatches_[static_cast<std::size_t>(number)];
    if (chunk == 0) {
      microbatch.embedding = append_embedding_forward(builder_, number);
      microbatch.stream = microbatch.embedding.result;
    }
    if (chunk == first_chunk && has_block(builder_.model, Block::experts))
      append_live_tokens(builder_, number);
    for (std::int64_t layer = chunk * layers_of_chunk_; layer < (chunk + 1) * layers_of_chunk_; ++layer) {
      Layer& buffers = microbatch.layers[static_cast<std::size_t>(layer)];
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
  }

  void append_delayed() {
    for (Delayed& delayed : delayed_)
      append_weight_gradients(builder_, delayed.microbatch, delayed.layer, delayed.module,
                              std::move(delayed.gradients));
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
      std::visit(
          [&](const auto& of) { delay(number, layer, module(of), backward(number, layer, of, residual)); },
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

  void delay(std::int64_t microbatch, std::int64_t layer, Module module,
             std::vector<LinearGradient> gradients) {
    if (!gradients.empty()) delayed_.push_back({microbatch, layer, module, std::move(gradients)});
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
  const ModelShard& shard = layout.shard();
  const bool apart = shard.layout.stages() > 1 || device.is_in(name_of(RankGroup::pipeline));
  const PipelineShape pipeline =
      apart ? PipelineShape{shard.layout.stages(), shard.virtual_stages, shape.microbatches}
            : PipelineShape{shape.pipeline, shape.virtual_stages, shape.microbatches};
  require(pipeline.chunks() > 0 && model.layers % pipeline.chunks() == 0,
          "the layers cannot be dealt out evenly to the chunks of the pipeline");
  StackBuilder<Space, T, G> builder(device, model, layout, shape);
  append_label_count(builder);
  const bool reduces = shape.training && builder.is_in(RankGroup::data);
  if (reduces) append_label_count_of_all_ranks(builder);
  Passes<Space, T, G> passes(builder, pipeline);
  if (apart) {
    append_cleared_metrics(builder);
    passes.append_stage(shard.place.stage);
  } else {
    passes.append_all();
  }
  if (shape.training) insert_sums_over_tensor_ranks(builder);
  if (apart) append_metrics_of_all_stages(builder);
  if (reduces) {
    append_metrics_of_all_ranks(builder);
    insert_gradient_reductions(builder);
  }
  if (apart && shape.training) append_sum_of_tied_gradients(builder);
  if (shape.training) append_optimizer(builder, shape);
  return std::move(builder.step);
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                        \
  template StepProgram<SPACE> build_step_program<SPACE, T, G>( \
      backend::Device<SPACE>&, const ModelConfiguration&, const ParameterLayout&, const StepShape&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
