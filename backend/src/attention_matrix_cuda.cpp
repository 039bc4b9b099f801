// SPDX-License-Identifier: Apache-2.0
#include "attention_matrix_cuda.hpp"
#include "attention_matrix_backward.hpp"
#include "attention_matrix_forward.hpp"
#include "attention_shapes.hpp"

#include <encore/backend/launch.hpp>

namespace encore::backend::impl {

namespace {

using Cuda = Kokkos::Cuda;

int processors_of(const Stream<Cuda>& stream) {
  return stream.execution_space().cuda_device_prop().multiProcessorCount;
}

template <class Kernel>
void launch_forward(Stream<Cuda>& stream, const AttentionForward<bfloat16>& of) {
  const AttentionShape& shape = of.shape;
  launch(
      stream, "attention forward",
      {heads_access(of.query, shape, shape.heads, false), heads_access(of.key, shape, shape.kv_heads, false),
       heads_access(of.value, shape, shape.kv_heads, false),
       heads_access(of.output, shape, shape.heads, true),
       write(of.log_sum_exp, static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens)),
       read(of.sinks, shape.sinks ? static_cast<std::size_t>(shape.heads) : 0)},
      Teams<Kernel::threads>{Kernel::teams(shape), Kernel::scratch_bytes}, Kernel{of});
  stream.note_flops(attention_flops(shape, 2));
}

template <class Kernel>
void launch_backward(Stream<Cuda>& stream, const AttentionBackward<bfloat16>& of,
                     const AttentionRotation<float>& rotation) {
  const AttentionShape& shape = of.shape;
  const auto reads_table = [&](const float* table) {
    return read(table, table == nullptr ? 0 : static_cast<std::size_t>(shape.tokens * shape.head_dim / 2));
  };
  const auto rows = static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens);
  const auto dots = static_cast<std::size_t>(2 * shape.batch * shape.heads * padded_tokens(shape.tokens));
  const Access output = heads_access(of.output, shape, shape.heads, false);
  const Access output_gradient = heads_access(of.output_gradient, shape, shape.heads, false);
  const Access log_sum_exp = read(of.log_sum_exp, rows);
  if (!Kernel::describes) {
    using Describe = DescribeQueries<Kernel::head_dim, MatrixUnits>;
    launch(stream, "attention backward: dots",
           {output, output_gradient, log_sum_exp, write(of.row_dots, dots)},
           Teams<Describe::threads>{Describe::teams(shape)}, Describe{of});
  }
  launch(
      stream, "attention backward",
      {heads_access(of.query, shape, shape.heads, false), heads_access(of.key, shape, shape.kv_heads, false),
       heads_access(of.value, shape, shape.kv_heads, false), output_gradient,
       Kernel::describes ? output : read(static_cast<const float*>(of.row_dots), dots),
       Kernel::describes ? log_sum_exp : Access{}, heads_access(of.query_gradient, shape, shape.heads, true),
       heads_access(of.key_gradient, shape, shape.kv_heads, true),
       heads_access(of.value_gradient, shape, shape.kv_heads, true), reads_table(rotation.cosine),
       reads_table(rotation.sine)},
      Teams<Kernel::threads>{Kernel::teams(shape), Kernel::scratch_bytes},
      Kernel{of, rotation, processors_of(stream)});
  stream.note_flops(attention_flops(shape, 5));
}

/// Blocks of so many queries, of all heads.
std::int64_t blocks_of(const AttentionShape& shape, std::int64_t queries) {
  return shape.batch * shape.heads * ((shape.tokens + queries - 1) / queries);
}

/// An H200 has 132 multiprocessors: blocks are as large as leave one for almost each.
constexpr std::int64_t enough_blocks = 100;

}  // namespace

void run_matrix_units(Stream<Cuda>& stream, const AttentionForward<bfloat16>& of) {
  using U = MatrixUnits;
  if (of.shape.head_dim == 64) {
    if (blocks_of(of.shape, 64) >= enough_blocks)
      return launch_forward<MatrixAttentionForward<64, 2, 2, 4, 32, U>>(stream, of);
    if (blocks_of(of.shape, 32) >= enough_blocks)
      return launch_forward<MatrixAttentionForward<64, 1, 2, 4, 32, U>>(stream, of);
    return launch_forward<MatrixAttentionForward<64, 1, 1, 4, 32, U>>(stream, of);
  }
  if (blocks_of(of.shape, 64) >= enough_blocks)
    return launch_forward<MatrixAttentionForward<128, 1, 4, 2, 32, U>>(stream, of);
  launch_forward<MatrixAttentionForward<128, 1, 1, 4, 32, U>>(stream, of);
}

void run_matrix_units(Stream<Cuda>& stream, const AttentionBackward<bfloat16>& of,
                      const AttentionRotation<float>& rotation) {
  using U = MatrixUnits;
  if (of.shape.head_dim == 64) {
    if (blocks_of(of.shape, 64) >= enough_blocks)
      return launch_backward<MatrixAttentionBackward<64, 4, 2, 32, false, U>>(stream, of, rotation);
    if (blocks_of(of.shape, 32) >= enough_blocks)
      return launch_backward<MatrixAttentionBackward<64, 2, 4, 32, false, U>>(stream, of, rotation);
    return launch_backward<MatrixAttentionBackward<64, 1, 8, 16, true, U>>(stream, of, rotation);
  }
  if (blocks_of(of.shape, 64) >= enough_blocks)
    return launch_backward<MatrixAttentionBackward<128, 4, 2, 32, false, U>>(stream, of, rotation);
  launch_backward<MatrixAttentionBackward<128, 1, 4, 16, true, U>>(stream, of, rotation);
}

}  // namespace encore::backend::impl
