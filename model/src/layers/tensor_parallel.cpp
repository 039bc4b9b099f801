// SPDX-License-Identifier: Apache-2.0
#include "tensor_parallel.hpp"

#include <encore/kernels/dropout.hpp>
#include <encore/kernels/residual.hpp>

namespace encore::model {

template <class Space, class T, class G>
BufferId append_gather(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                       const std::string& what, const std::string& name, BufferId own) {
  if (!builder.shape.sequence_parallel) return own;
  const std::int64_t columns = builder.step.program.outline().buffer(own).shape.back();
  const BufferId all = builder.template add<T>(name, {builder.tokens(), columns});
  segments.communicate(what, buffers_of(own), buffers_of(all), [=](Execution<Space>& x) {
    all_gather<T>(x, RankGroup::tensor, "encore::tensor::all_gather", own, all);
  });
  return all;
}

template <class Space, class T, class G>
BufferId append_sum(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                    const std::string& what, const std::string& name, BufferId terms) {
  if (!builder.is_in(RankGroup::tensor)) return terms;
  if (!builder.shape.sequence_parallel) {
    segments.communicate(what, {}, buffers_of(terms), [=](Execution<Space>& x) {
      all_reduce<T>(x, RankGroup::tensor, "encore::tensor::all_reduce", terms);
    });
    return terms;
  }
  const std::int64_t columns = builder.step.program.outline().buffer(terms).shape.back();
  const BufferId own = builder.template add<T>(name, {builder.stream_tokens(), columns});
  segments.communicate(what, buffers_of(terms), buffers_of(own), [=](Execution<Space>& x) {
    reduce_scatter<T>(x, RankGroup::tensor, "encore::tensor::reduce_scatter", terms, own);
  });
  return own;
}

template <class Space, class T, class G>
BranchTerm branch_term(StackBuilder<Space, T, G>& builder, const std::string& name, BufferId residual,
                       BufferId result) {
  const bool first = builder.shard().place.tensor == 0;
  if (!builder.drops() && !builder.shape.sequence_parallel)
    return {result, first ? std::optional(residual) : std::nullopt, first, name};
  const BufferId undropped =
      builder.template add<T>(name + "/undropped", {builder.tokens(), builder.model.hidden});
  return {undropped, std::nullopt, first, name};
}

template <class Space, class T, class G>
void append_branch(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments, const BranchTerm& term,
                   BufferId residual, BufferId result, std::uint32_t dropout_segment) {
  const BufferId sum = append_sum(builder, segments, "sum", term.name + "/own_undropped", term.value);
  if (sum == result) return;
  const bool drops = builder.drops();
  const BufferId probability = builder.scalar("dropout");
  const char* random = builder.hidden_random();
  segments.compute(
      "residual", buffers_of(sum, residual, probability), buffers_of(result), [=](Execution<Space>& x) {
        const auto from = x.template matrix<const T>(sum), to = x.template matrix<const T>(residual);
        if (!drops) return kernels::add<Space, T>(x.stream(), from, to, x.template matrix<T>(result));
        kernels::dropout_forward<Space, T>(x.stream(), from, to, x.template matrix<T>(result),
                                           x.template pointer<const double>(probability),
                                           x.device().random().state(random), dropout_segment);
      });
}

template <class Space, class T, class G>
BufferId append_branch_gradient(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                                const std::string& name, const char* label, BufferId residual,
                                std::uint32_t dropout_segment) {
  const BranchGradient gradient = branch_gradient(builder, name, residual);
  const BufferId probability = builder.scalar("dropout");
  if (gradient.value != residual)
    segments.compute("output_gradient", buffers_of(residual, probability), buffers_of(gradient.value),
                     [=](Execution<Space>& x) {
                       Operations<Space, T>::fill_branch_gradient(x, label, gradient, residual, probability,
                                                                  dropout_segment);
                     });
  return append_gather(builder, segments, "gather_gradient", name + "/gathered_gradient", gradient.value);
}

template <class Space, class T, class G>
void append_weights(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                    std::vector<LinearGradient> gradients) {
  std::vector<BufferId> reads;
  for (LinearGradient& gradient : gradients) {
    gradient.beside = builder.is_in(RankGroup::tensor);
    append(reads, gradient.input);
    append(reads, gradient.output_gradient);
  }
  segments.compute(
      "weights", reads, buffers_of(gradients),
      [gradients](Execution<Space>& x) {
        for (const LinearGradient& gradient : gradients)
          Operations<Space, T>::template linear_backward_weight<G>(x, gradient);
      },
      lingering(builder, gradients));
}

template <class Space, class T, class G>
void append_norm(const StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                 const NormBuffers& norm, const NormStatistics& statistics, BufferId input,
                 BufferId normalized) {
  segments.compute("norm", buffers_of(input, norm.weight.value, value_of(norm.bias)),
                   buffers_of(normalized, statistics),
                   [=, epsilon = builder.model.norm_epsilon](Execution<Space>& x) {
                     Operations<Space, T>::norm_forward(x, norm, statistics, input, normalized, epsilon);
                   });
}

template <class Space, class T, class G>
void append_norm_backward(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                          const NormBuffers& norm, const NormStatistics& statistics, BufferId input,
                          BufferId gradient, BufferId residual, bool add_residual, BufferId workspace) {
  const bool accumulate = builder.accumulates(norm);
  segments.compute(
      "norm",
      buffers_of(input, gradient, statistics, norm.weight.value,
                 add_residual ? std::optional(residual) : std::nullopt),
      buffers_of(residual, workspace, norm.weight.gradient, gradient_of(norm.bias)),
      [=](Execution<Space>& x) {
        Operations<Space, T>::template norm_backward<G>(x, norm, statistics, input, gradient, residual,
                                                        add_residual, workspace, accumulate);
      },
      lingering(builder, buffers_of(workspace)));
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                     \
  template BufferId append_gather(StackBuilder<SPACE, T, G>&, BlockSegments<SPACE>&, const std::string&,    \
                                  const std::string&, BufferId);                                            \
  template BufferId append_sum(StackBuilder<SPACE, T, G>&, BlockSegments<SPACE>&, const std::string&,       \
                               const std::string&, BufferId);                                               \
  template BranchTerm branch_term(StackBuilder<SPACE, T, G>&, const std::string&, BufferId, BufferId);      \
  template void append_branch(StackBuilder<SPACE, T, G>&, BlockSegments<SPACE>&, const BranchTerm&,         \
                              BufferId, BufferId, std::uint32_t);                                           \
  template BufferId append_branch_gradient(StackBuilder<SPACE, T, G>&, BlockSegments<SPACE>&,               \
                                           const std::string&, const char*, BufferId, std::uint32_t);       \
  template void append_weights(StackBuilder<SPACE, T, G>&, BlockSegments<SPACE>&,                           \
                               std::vector<LinearGradient>);                                                \
  template void append_norm(const StackBuilder<SPACE, T, G>&, BlockSegments<SPACE>&, const NormBuffers&,    \
                            const NormStatistics&, BufferId, BufferId);                                     \
  template void append_norm_backward(StackBuilder<SPACE, T, G>&, BlockSegments<SPACE>&, const NormBuffers&, \
                                     const NormStatistics&, BufferId, BufferId, BufferId, bool, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
