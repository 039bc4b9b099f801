// SPDX-License-Identifier: Apache-2.0
#include "tensor_parallel.hpp"

#include <encore/kernels/dropout.hpp>
#include <encore/kernels/embedding.hpp>
#include <encore/kernels/initialization.hpp>

namespace encore::model {

template <class Space, class T, class G>
EmbeddingBuffers append_embedding_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch) {
  const std::string name = builder.prefix(microbatch) + "embedding";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden;
  const bool dealt_out = builder.shape.sequence_parallel;
  EmbeddingBuffers b{};
  b.tokens = builder.parameter("embedding/tokens");
  if (builder.model.position == Position::learned) b.positions = builder.parameter("embedding/positions");
  b.ids =
      builder.step.program.outline().find_buffer("microbatch." + std::to_string(microbatch) + "/ids").value();
  const BufferId rows = builder.template add<T>(name + (dealt_out ? "/rows" : "/result"), {tokens, hidden});
  if (builder.training()) {
    b.order = builder.template add<std::int32_t>(name + "/order", {tokens});
    // A tied table's gradient gets the head's share first, where the head is here too.
    const bool head_is_first = builder.model.tie_embeddings && builder.shard().has_head();
    if (!head_is_first && !builder.accumulates(b.tokens)) b.cleared = b.tokens.gradient;
  }
  b.first_row = builder.vocabulary().begin;
  BlockSegments<Space> segments(builder.step.program, segment_of_layer(name + "/forward", Module::embedding,
                                                                       Phase::forward, -1, microbatch));
  // One rank adds the positions to the sum.
  const auto positions =
      b.positions && builder.shard().place.tensor == 0 ? std::optional(b.positions->value) : std::nullopt;
  segments.compute("rows", buffers_of(b.tokens.value, positions, b.ids), buffers_of(rows, b.order, b.cleared),
                   [b, rows, positions, sequence = builder.shape.tokens](Execution<Space>& x) {
                     // What backward needs and no input of it waits for goes beside all that comes in between.
                     if (b.order)
                       kernels::token_order<Space>(x.stream(), x.template vector<const std::int32_t>(b.ids),
                                                   x.template vector<std::int32_t>(*b.order));
                     if (b.cleared) {
                       const backend::BesideScope<Space> beside(x.stream());
                       kernels::fill_constant<Space, G>(x.stream(), x.template vector<G>(*b.cleared), 0.0);
                     }
                     kernels::embedding_forward<Space, T>(x.stream(),
                                                          x.template vector<const std::int32_t>(b.ids),
                                                          x.template matrix<const T>(b.tokens.value),
                                                          positions ? x.template matrix<const T>(*positions)
                                                                    : backend::Matrix<const T, Space>(),
                                                          sequence, x.template matrix<T>(rows), b.first_row);
                   });
  b.result = append_sum(builder, segments, "sum", name + "/result", rows);
  if (builder.drops()) {
    b.dropout_segment = builder.random_segment(microbatch, 0, RandomPlace::embedding);
    const BufferId probability = builder.scalar("dropout");
    segments.compute("dropout", buffers_of(b.result, probability), buffers_of(b.result),
                     [b, probability, random = builder.hidden_random()](Execution<Space>& x) {
                       kernels::dropout_forward<Space, T>(
                           x.stream(), x.template matrix<const T>(b.result), {},
                           x.template matrix<T>(b.result), x.template pointer<const double>(probability),
                           x.device().random().state(random), b.dropout_segment);
                     });
  }
  segments.end();
  return b;
}

template <class Space, class T, class G>
void append_embedding_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                               const EmbeddingBuffers& b, BufferId residual) {
  const std::string name = builder.prefix(microbatch) + "embedding";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden;
  const BufferId workspace = builder.template add<Accumulator<T>>(
      name + "/backward_workspace", {kernels::embedding_workspace_rows(tokens), hidden});
  // Forward has cleared the table's gradient, or the head has already put its share into it.
  const bool accumulate_tokens = builder.accumulates(b.tokens);
  const bool accumulate_positions = b.positions && builder.accumulates(*b.positions);
  BlockSegments<Space> segments(builder.step.program, segment_of_layer(name + "/backward", Module::embedding,
                                                                       Phase::backward, -1, microbatch));
  if (builder.drops()) {
    const BufferId probability = builder.scalar("dropout");
    segments.compute("dropout", buffers_of(residual, probability), buffers_of(residual),
                     [=, random = builder.hidden_random(), segment = b.dropout_segment](Execution<Space>& x) {
                       kernels::dropout_backward<Space, T>(x.stream(), x.template matrix<const T>(residual),
                                                           x.template matrix<T>(residual),
                                                           x.template pointer<const double>(probability),
                                                           x.device().random().state(random), segment);
                     });
  }
  const BufferId gradient = append_gather(builder, segments, "gather", name + "/gathered_gradient", residual);
  segments.compute("rows", buffers_of(b.ids, b.order, gradient),
                   buffers_of(workspace, b.tokens.gradient, gradient_of(b.positions)),
                   [=, sequence = builder.shape.tokens](Execution<Space>& x) {
                     kernels::embedding_backward<Space, T, G>(
                         x.stream(), x.template vector<const std::int32_t>(b.ids),
                         x.template vector<const std::int32_t>(*b.order),
                         x.template matrix<const T>(gradient), x.template matrix<G>(*b.tokens.gradient),
                         x.template matrix<Accumulator<T>>(workspace), accumulate_tokens, b.first_row);
                     if (b.positions)
                       kernels::position_embedding_backward<Space, T, G>(
                           x.stream(), x.template matrix<const T>(gradient), sequence,
                           x.template matrix<G>(*b.positions->gradient), accumulate_positions);
                   });
  segments.end();
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                      \
  template EmbeddingBuffers append_embedding_forward(StackBuilder<SPACE, T, G>&, std::int64_t);              \
  template void append_embedding_backward(StackBuilder<SPACE, T, G>&, std::int64_t, const EmbeddingBuffers&, \
                                          BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
