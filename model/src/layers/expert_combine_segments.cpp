// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/combine.hpp>
#include <encore/kernels/dropout.hpp>
#include <encore/kernels/expert_exchange.hpp>
#include <encore/kernels/residual.hpp>

#include "expert_segments.hpp"

namespace encore::model {

template <class Space, class T, class G>
void append_expert_combine(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                           const std::string& name, const ExpertBuffers& b) {
  const ExpertGeometry g = expert_geometry(builder);
  std::optional<BufferId> undropped;
  if (builder.drops() && !b.sum)
    undropped = builder.template add<T>(name + "/undropped", {g.tokens, g.hidden});
  const bool drops = builder.drops();
  const BufferId probability = builder.scalar("dropout");
  const BufferId outputs = b.returned.value_or(b.outputs), row_of = b.slot_of.value_or(b.row_of);
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_combine);
  segment.reads = b.sum ? buffers_of(b.input, b.shared_result, probability)
                        : buffers_of(b.input, outputs, row_of, b.shared_result, probability);
  segment.writes = buffers_of(b.result, undropped, b.sum);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    const auto input = x.template matrix<const T>(b.input);
    using Inputs = backend::Matrix<const T, Space>;
    const auto shared = b.shared_result ? x.template matrix<const T>(*b.shared_result) : Inputs();
    if (b.sum) {
      const auto sum = x.template matrix<T>(*b.sum);
      if (b.shared_result) kernels::add<Space, T>(x.stream(), Inputs(sum), shared, sum);
      if (!drops) kernels::add<Space, T>(x.stream(), Inputs(sum), input, x.template matrix<T>(b.result));
    } else {
      kernels::combine_forward<Space, T>(
          x.stream(), x.template matrix<const T>(outputs), x.template matrix<const std::int32_t>(row_of),
          undropped ? Inputs() : input, shared, x.template matrix<T>(undropped.value_or(b.result)));
    }
    if (drops)
      kernels::dropout_forward<Space, T>(x.stream(), x.template matrix<const T>(b.sum ? *b.sum : *undropped),
                                         input, x.template matrix<T>(b.result),
                                         x.template pointer<const double>(probability),
                                         x.device().random().state("default"), b.dropout_segment);
  });
}

template <class Space, class T, class G>
void append_expert_combine_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                    const ExpertBuffers& b, const ExpertGradients& gradients,
                                    BufferId residual) {
  using Ops = Operations<Space, T>;
  const BufferId probability = builder.scalar("dropout");
  // Where all tokens go to all ranks, their gradients do as they are.
  const bool gathers = !b.routing || b.slot_of;
  if (!gathers && gradients.output.value == residual) return;
  const BufferId rows = gradients.slots.value_or(gradients.rows), row_of = b.slot_of.value_or(b.row_of);
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_combine);
  segment.reads = buffers_of(residual, row_of, probability);
  segment.writes = buffers_of(gradients.output.dropped, gradients.output.kept);
  if (gathers) append(segment.writes, rows);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    Ops::fill_branch_gradient(x, "encore::moe::output_gradient", gradients.output, residual, probability,
                              b.dropout_segment);
    if (gathers)
      kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(gradients.output.value),
                                     x.template matrix<const std::int32_t>(row_of),
                                     x.template matrix<T>(rows));
  });
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

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                   \
  template void append_expert_combine(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&, \
                                      const ExpertBuffers&);                                              \
  template void append_expert_combine_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,            \
                                               const ExpertBuffers&, const ExpertGradients&, BufferId);   \
  template void append_expert_preprocess_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,         \
                                                  const ExpertBuffers&, const ExpertGradients&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
