// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"

namespace encore::model {

template <class Space, class T, class G>
void append_weight_gradients(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, std::int64_t layer,
                             Module module, std::vector<LinearGradient> gradients) {
  std::vector<BufferId> reads;
  for (LinearGradient& gradient : gradients) {
    gradient.accumulate = builder.accumulates(gradient.linear);
    append(reads, gradient.input);
    append(reads, gradient.output_gradient);
  }
  builder.step.program.add_segment({builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/" +
                                        std::string(name_of(module)) + "/weight_gradient",
                                    module, Phase::weight_gradient, static_cast<std::int32_t>(layer),
                                    static_cast<std::int32_t>(microbatch), reads, buffers_of(gradients)},
                                   [gradients](Execution<Space>& x) {
                                     for (const LinearGradient& gradient : gradients)
                                       Operations<Space, T>::template linear_backward_weight<G>(x, gradient);
                                   });
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                 \
  template void append_weight_gradients(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t, Module, \
                                        std::vector<LinearGradient>);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
