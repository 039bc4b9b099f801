// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/combine.hpp>
#include <encore/kernels/dispatch.hpp>
#include <encore/kernels/residual.hpp>

#include "expert_segments.hpp"

namespace encore::model {

template <class Space, class T, class G>
void append_expert_combine(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                           const std::string& name, const ExpertBuffers& b) {
  const BufferId outputs = b.returned.value_or(b.outputs), row_of = b.slot_of.value_or(b.row_of);
  BlockSegments<Space> segments(builder.step.program,
                                place.segment(builder.prefix(place.microbatch), Module::moe_combine));
  const BranchTerm term = branch_term(builder, name, b.input, b.result);
  if (b.sum)
    segments.compute("term", buffers_of(*b.sum, b.shared_result, term.addend), buffers_of(term.value),
                     [=, b = b](Execution<Space>& x) {
                       Operations<Space, T>::copy(x, "encore::moe::sum", *b.sum, term.value);
                       const auto sum = x.template matrix<T>(term.value);
                       for (const auto& addend : {b.shared_result, term.addend})
                         if (addend)
                           kernels::add<Space, T>(x.stream(), x.template matrix<const T>(term.value),
                                                  x.template matrix<const T>(*addend), sum);
                     });
  else
    segments.compute("term", buffers_of(term.addend, outputs, row_of, b.shared_result),
                     buffers_of(term.value), [=, b = b](Execution<Space>& x) {
                       const auto matrix_or_empty = [&](const std::optional<BufferId>& id) {
                         return id ? x.template matrix<const T>(*id) : backend::Matrix<const T, Space>();
                       };
                       kernels::combine_forward<Space, T>(
                           x.stream(), x.template matrix<const T>(outputs),
                           x.template matrix<const std::int32_t>(row_of), matrix_or_empty(term.addend),
                           matrix_or_empty(b.shared_result), x.template matrix<T>(term.value));
                     });
  append_branch(builder, segments, term, b.input, b.result, b.dropout_segment);
  segments.end();
}

template <class Space, class T, class G>
void append_expert_combine_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                    const std::string& name, const ExpertBuffers& b,
                                    ExpertGradients& gradients, BufferId residual) {
  BlockSegments<Space> segments(builder.step.program,
                                place.segment(builder.prefix(place.microbatch), Module::moe_combine));
  const BufferId output = gradients.output = append_branch_gradient(
      builder, segments, name, "encore::moe::output_gradient", residual, b.dropout_segment);
  // Where all tokens go to all ranks, their gradients do as they are.
  if (!b.routing || b.slot_of) {
    const BufferId rows = gradients.slots.value_or(gradients.rows), row_of = b.slot_of.value_or(b.row_of);
    segments.compute("rows", buffers_of(output, row_of), buffers_of(rows), [=](Execution<Space>& x) {
      kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(output),
                                     x.template matrix<const std::int32_t>(row_of),
                                     x.template matrix<T>(rows));
    });
  }
  segments.end();
}

template <class Space, class T, class G>
void append_expert_preprocess_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                       const ExpertBuffers& b, const ExpertGradients& gradients) {
  if (b.routing) return;  // The ranks that share the experts have brought the gradients here.
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_preprocess);
  segment.reads = buffers_of(gradients.rows, b.row_of);
  segment.writes = buffers_of(gradients.normalized);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    kernels::gather_rows_backward<Space, T>(x.stream(), x.template matrix<const T>(gradients.rows),
                                            x.template matrix<const std::int32_t>(b.row_of),
                                            x.template matrix<T>(gradients.normalized), false);
  });
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                    \
  template void append_expert_combine(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&,  \
                                      const ExpertBuffers&);                                               \
  template void append_expert_combine_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,             \
                                               const std::string&, const ExpertBuffers&, ExpertGradients&, \
                                               BufferId);                                                  \
  template void append_expert_preprocess_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,          \
                                                  const ExpertBuffers&, const ExpertGradients&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
