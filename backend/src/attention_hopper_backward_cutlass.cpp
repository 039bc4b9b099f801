// SPDX-License-Identifier: Apache-2.0
#include "attention_hopper_backward_cutlass.hpp"
#include "attention_hopper_forward_cutlass.hpp"

namespace encore::backend::impl {

namespace {

template <int Groups>
void run_with(const AttentionBackward<bfloat16>& of, const AttentionRotation<float>& rotation,
              bool programmatic, CUstream_st* stream) {
  using Kernel = hopper::BackwardKernel<Groups>;
  const AttentionShape& shape = of.shape;
  const hopper::BackwardArguments arguments{map_of_heads(of.query, shape, shape.heads),
                                            map_of_heads(of.key, shape, shape.kv_heads),
                                            map_of_heads(of.value, shape, shape.kv_heads),
                                            map_of_heads(of.output_gradient, shape, shape.heads),
                                            of,
                                            rotation};
  const std::int64_t blocks = (shape.tokens + hopper::tile_rows - 1) / hopper::tile_rows;
  hopper::start(&hopper::run_backward<Groups>, arguments,
                shape.batch * (shape.heads + shape.kv_heads) * blocks, Kernel::threads, Kernel::shared_bytes,
                programmatic, stream);
}

}  // namespace

void load_hopper_backward() {
  hopper::load_kernel(&hopper::run_backward<1>, hopper::BackwardKernel<1>::shared_bytes);
  hopper::load_kernel(&hopper::run_backward<2>, hopper::BackwardKernel<2>::shared_bytes);
}

void HopperAttention::load() {
  load_hopper_forward();
  load_hopper_backward();
}

void HopperAttention::run(const AttentionBackward<bfloat16>& operands,
                          const AttentionRotation<float>& rotation, int groups, bool programmatic,
                          CUstream_st* stream) {
  if (groups == 1) return run_with<1>(operands, rotation, programmatic, stream);
  run_with<2>(operands, rotation, programmatic, stream);
}

}  // namespace encore::backend::impl
