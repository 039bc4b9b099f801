// SPDX-License-Identifier: Apache-2.0
#include "stack_builder.hpp"

namespace encore::model {

template <class Space, class T, class G>
StepProgram<Space> build_step_program(backend::Device<Space>& device, const ModelConfiguration& model,
                                      const ParameterLayout& layout, const StepShape& shape) {
  StackBuilder<Space, T, G> builder(device, model, layout, shape);
  append_label_count(builder);
  for (std::int64_t microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
    const EmbeddingBuffers embedding = append_embedding_forward(builder, microbatch);
    std::vector<AttentionBuffers> attention;
    std::vector<MlpBuffers> mlp;
    BufferId stream = embedding.result;
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      attention.push_back(append_attention_forward(builder, microbatch, layer, stream));
      mlp.push_back(append_mlp_forward(builder, microbatch, layer, attention.back().result));
      stream = mlp.back().result;
    }
    const HeadBuffers head = append_head_forward(builder, microbatch, stream);
    if (!shape.training) continue;

    const BufferId residual = builder.template add<T>(builder.prefix(microbatch) + "residual_gradient",
                                                      {builder.tokens(), model.hidden});
    append_head_backward(builder, microbatch, head, residual);
    for (std::int64_t layer = model.layers - 1; layer >= 0; --layer) {
      append_mlp_backward(builder, microbatch, layer, mlp[static_cast<std::size_t>(layer)], residual);
      append_attention_backward(builder, microbatch, layer, attention[static_cast<std::size_t>(layer)],
                                residual);
    }
    append_embedding_backward(builder, microbatch, embedding, residual);
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
