// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_kernels_cuda.hpp"

namespace encore::backend::impl {

inline Access reads_probability(const AttentionDropout& dropout) {
  return read(dropout.probability, dropout.probability != nullptr ? 1 : 0);
}
inline Access reads_state(const AttentionDropout& dropout) {
  return read(dropout.state, dropout.state != nullptr ? 1 : 0);
}
inline std::size_t rows_of(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens);
}

template <int HeadDim, class T>
void launch_portable(Stream<Kokkos::Cuda>& stream, const AttentionForward<T>& of) {
  using Kernel = CudaAttentionForward<HeadDim, T>;
  const AttentionShape& shape = of.shape;
  const std::int64_t blocks = (shape.tokens + Kernel::queries - 1) / Kernel::queries;
  launch(
      stream, "attention forward",
      {heads_access(of.query, shape, shape.heads, false), heads_access(of.key, shape, shape.kv_heads, false),
       heads_access(of.value, shape, shape.kv_heads, false),
       heads_access(of.output, shape, shape.heads, true), write(of.log_sum_exp, rows_of(shape)),
       read(of.sinks, shape.sinks ? static_cast<std::size_t>(shape.heads) : 0), reads_probability(of.dropout),
       reads_state(of.dropout)},
      Teams<attention_threads>{shape.batch * shape.heads * blocks, Kernel::scratch_bytes}, Kernel{of});
}

template <int HeadDim, class T>
void launch_portable(Stream<Kokkos::Cuda>& stream, const AttentionBackward<T>& of) {
  using QueryKernel = CudaAttentionQueryGradient<HeadDim, T>;
  using KeyKernel = CudaAttentionKeyGradient<HeadDim, T>;
  const AttentionShape& shape = of.shape;
  const Access reads_query = heads_access(of.query, shape, shape.heads, false);
  const Access reads_key = heads_access(of.key, shape, shape.kv_heads, false);
  const Access reads_value = heads_access(of.value, shape, shape.kv_heads, false);
  const Access reads_gradient = heads_access(of.output_gradient, shape, shape.heads, false);
  const Access reads_log_sum_exp = read(of.log_sum_exp, rows_of(shape));
  const std::int64_t query_blocks = (shape.tokens + QueryKernel::queries - 1) / QueryKernel::queries;
  launch(
      stream, "attention backward: queries",
      {reads_query, reads_key, reads_value, reads_gradient, reads_log_sum_exp, reads_probability(of.dropout),
       reads_state(of.dropout), heads_access(of.output, shape, shape.heads, false),
       write(of.row_dots, rows_of(shape)), heads_access(of.query_gradient, shape, shape.heads, true)},
      Teams<attention_threads>{shape.batch * shape.heads * query_blocks, QueryKernel::scratch_bytes},
      QueryKernel{of});
  const std::int64_t key_blocks = (shape.tokens + KeyKernel::keys - 1) / KeyKernel::keys;
  launch(
      stream, "attention backward: keys and values",
      {reads_query, reads_key, reads_value, reads_gradient, reads_log_sum_exp, reads_probability(of.dropout),
       reads_state(of.dropout), read(static_cast<const Accumulator<T>*>(of.row_dots), rows_of(shape)),
       heads_access(of.key_gradient, shape, shape.kv_heads, true),
       heads_access(of.value_gradient, shape, shape.kv_heads, true)},
      Teams<attention_threads>{shape.batch * shape.kv_heads * key_blocks, KeyKernel::scratch_bytes},
      KeyKernel{of});
}

template <class Operands>
void run_portable(Stream<Kokkos::Cuda>& stream, const Operands& operands) {
  if (operands.shape.head_dim <= 64) return launch_portable<64>(stream, operands);
  if (operands.shape.head_dim <= 128) return launch_portable<128>(stream, operands);
  launch_portable<256>(stream, operands);
}

}  // namespace encore::backend::impl
