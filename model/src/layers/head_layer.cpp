// SPDX-License-Identifier: Apache-2.0
#include "tensor_parallel.hpp"

#include <encore/kernels/cross_entropy.hpp>

namespace encore::model {

template <class Space, class T, class G>
void append_label_count(StackBuilder<Space, T, G>& builder) {
  const BufferId labels = builder.step.labels, count = builder.step.label_count;
  builder.step.program.add_segment(
      {"label_count", Module::head, Phase::forward, -1, -1, buffers_of(labels), buffers_of(count)},
      [=](Execution<Space>& x) {
        kernels::count_labels<Space>(x.stream(), x.template vector<const std::int32_t>(labels),
                                     x.template pointer<double>(count));
      });
}

namespace {

/// The losses of a microbatch's rows, and their gradient in place of the logits.
struct RowLosses {
  BufferId logits, labels, count, row_loss;
  bool training;
};

/// As of all ranks, each of which has the logits of a part of the vocabulary.
template <class Space, class T, class G>
void append_loss_of_parts(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                          const std::string& name, const RowLosses& of) {
  using A = Accumulator<T>;
  const std::int64_t tokens = builder.tokens(), ranks = builder.shard().layout.tensor();
  const std::int64_t first = builder.vocabulary().begin;
  const BufferId own = builder.template add<A>(name + "/statistics", {tokens, kernels::part_statistics});
  const BufferId all =
      builder.template add<A>(name + "/statistics_of_all_ranks", {ranks * tokens, kernels::part_statistics});
  segments.compute("statistics", buffers_of(of.logits, of.labels), buffers_of(own), [=](Execution<Space>& x) {
    kernels::cross_entropy_part<Space, T>(x.stream(), x.template matrix<const T>(of.logits),
                                          x.template vector<const std::int32_t>(of.labels), first,
                                          x.template matrix<A>(own));
  });
  segments.communicate("gather_statistics", buffers_of(own), buffers_of(all), [=](Execution<Space>& x) {
    all_gather<A>(x, RankGroup::tensor, "encore::tensor::loss_statistics", own, all);
  });
  segments.compute("loss", buffers_of(of.logits, of.labels, of.count, all),
                   buffers_of(of.logits, of.row_loss), [=](Execution<Space>& x) {
                     kernels::cross_entropy_of_parts<Space, T>(
                         x.stream(), x.template matrix<T>(of.logits),
                         x.template vector<const std::int32_t>(of.labels), first,
                         x.template matrix<const A>(all), x.template pointer<const double>(of.count),
                         x.template vector<A>(of.row_loss), of.training);
                   });
}

}  // namespace

template <class Space, class T, class G>
HeadBuffers append_head_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, BufferId input) {
  using Ops = Operations<Space, T>;
  using A = Accumulator<T>;
  const std::string name = builder.prefix(microbatch) + "head";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden;
  const bool training = builder.training(), accumulate = builder.accumulates(builder.step.loss);
  HeadBuffers b{};
  b.norm = builder.norm("head/norm");
  b.weight = builder.parameter(builder.model.tie_embeddings ? "embedding/tokens" : "head/logits.weight");
  b.input = input;
  b.normalized = builder.template add<T>(name + "/normalized", {builder.stream_tokens(), hidden});
  b.statistics = builder.statistics(name + "/norm");
  b.logits = builder.template add<T>(name + "/logits", {tokens, builder.local.vocab},
                                     training ? BufferKind::activation : BufferKind::metric);
  if (!training) builder.step.logits.push_back(b.logits);
  const BufferId row_loss = builder.template add<A>(name + "/row_loss", {tokens});
  const BufferId labels = builder.step.program.outline()
                              .find_buffer("microbatch." + std::to_string(microbatch) + "/labels")
                              .value();
  const BufferId count = builder.step.label_count, loss = builder.step.loss;
  BlockSegments<Space> segments(builder.step.program, segment_of_layer(name + "/forward", Module::head,
                                                                       Phase::forward, -1, microbatch));
  append_norm(builder, segments, b.norm, b.statistics, b.input, b.normalized);
  b.gathered = append_gather(builder, segments, "gather", name + "/gathered", b.normalized);
  segments.compute(
      "logits", buffers_of(b.gathered, b.weight.value), buffers_of(b.logits), [=](Execution<Space>& x) {
        Ops::linear_forward(x, "encore::head::logits", {b.weight, std::nullopt, false}, b.gathered, b.logits);
      });
  const RowLosses losses{b.logits, labels, count, row_loss, training};
  if (builder.is_in(RankGroup::tensor)) {
    append_loss_of_parts(builder, segments, name, losses);
  } else {
    segments.compute("loss", buffers_of(b.logits, labels, count), buffers_of(b.logits, row_loss),
                     [=](Execution<Space>& x) {
                       kernels::cross_entropy<Space, T>(x.stream(), x.template matrix<T>(losses.logits),
                                                        x.template vector<const std::int32_t>(labels),
                                                        x.template pointer<const double>(count),
                                                        x.template vector<A>(row_loss), training);
                     });
  }
  segments.compute("mean", buffers_of(row_loss, count), buffers_of(loss), [=](Execution<Space>& x) {
    kernels::reduce_loss<Space, A>(x.stream(), x.template vector<const A>(row_loss),
                                   x.template pointer<const double>(count), x.template pointer<double>(loss),
                                   accumulate);
  });
  segments.end();
  return b;
}

template <class Space, class T, class G>
void append_head_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, const HeadBuffers& b,
                          BufferId residual) {
  using Ops = Operations<Space, T>;
  const std::string name = builder.prefix(microbatch) + "head";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden;
  const BufferId normalized_gradient =
      builder.template add<T>(name + "/normalized_gradient", {tokens, hidden});
  const BufferId norm_workspace = builder.template add<Accumulator<T>>(
      name + "/norm_workspace", Ops::norm_workspace(b.norm, builder.stream_tokens(), hidden));
  const LinearBuffers linear{b.weight, std::nullopt, false};
  const LinearGradient weight_gradient{"encore::head::logits_wgrad",
                                       linear,
                                       b.gathered,
                                       b.logits,
                                       std::nullopt,
                                       builder.accumulates(linear),
                                       builder.is_in(RankGroup::tensor)};
  BlockSegments<Space> segments(builder.step.program, segment_of_layer(name + "/backward", Module::head,
                                                                       Phase::backward, -1, microbatch));
  segments.compute("logits", buffers_of(b.weight.value, b.gathered, b.logits),
                   buffers_of(normalized_gradient), [=](Execution<Space>& x) {
                     Ops::linear_backward_input(x, "encore::head::logits_dgrad", linear, b.logits,
                                                normalized_gradient);
                   });
  const BufferId own_gradient =
      append_sum(builder, segments, "sum", name + "/own_normalized_gradient", normalized_gradient);
  // Logits do not linger: no other buffer is as large.
  segments.compute("weights", buffers_of(b.gathered, b.logits), buffers_of(weight_gradient),
                   [=](Execution<Space>& x) { Ops::template linear_backward_weight<G>(x, weight_gradient); });
  append_norm_backward(builder, segments, b.norm, b.statistics, b.input, own_gradient, residual, false,
                       norm_workspace);
  segments.end();
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                         \
  template void append_label_count(StackBuilder<SPACE, T, G>&);                                 \
  template HeadBuffers append_head_forward(StackBuilder<SPACE, T, G>&, std::int64_t, BufferId); \
  template void append_head_backward(StackBuilder<SPACE, T, G>&, std::int64_t, const HeadBuffers&, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
