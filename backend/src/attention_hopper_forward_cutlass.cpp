// SPDX-License-Identifier: Apache-2.0
#include "attention_hopper_forward_cutlass.hpp"

namespace encore::backend::impl {

namespace {

template <int Groups>
void run_with(const AttentionForward<bfloat16>& of, bool programmatic, CUstream_st* stream) {
  using Kernel = hopper::ForwardKernel<Groups>;
  const hopper::ForwardArguments arguments{map_of_heads(of.query, of.shape, of.shape.heads),
                                           map_of_heads(of.key, of.shape, of.shape.kv_heads),
                                           map_of_heads(of.value, of.shape, of.shape.kv_heads), of};
  const std::int64_t blocks = (of.shape.tokens + hopper::tile_rows - 1) / hopper::tile_rows;
  hopper::start(&hopper::run_forward<Groups>, arguments, of.shape.batch * of.shape.heads * blocks,
                Kernel::threads, Kernel::shared_bytes, programmatic, stream);
}

}  // namespace

void load_hopper_forward() {
  hopper::load_kernel(&hopper::run_forward<1>, hopper::ForwardKernel<1>::shared_bytes);
  hopper::load_kernel(&hopper::run_forward<2>, hopper::ForwardKernel<2>::shared_bytes);
  hopper::load_kernel(&hopper::run_forward<4>, hopper::ForwardKernel<4>::shared_bytes);
}

void HopperAttention::run(const AttentionForward<bfloat16>& operands, int groups, bool programmatic,
                          CUstream_st* stream) {
  if (groups == 1) return run_with<1>(operands, programmatic, stream);
  if (groups == 2) return run_with<2>(operands, programmatic, stream);
  run_with<4>(operands, programmatic, stream);
}

}  // namespace encore::backend::impl
