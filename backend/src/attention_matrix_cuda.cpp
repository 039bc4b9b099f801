// SPDX-License-Identifier: Apache-2.0
#include "attention_matrix_cuda.hpp"
#include "attention_hopper_cutlass.hpp"
#include "attention_matrix_backward.hpp"
#include "attention_matrix_forward.hpp"
#include "attention_shapes.hpp"

#include <encore/backend/launch.hpp>

namespace encore::backend::impl {

namespace {

using Cuda = Kokkos::Cuda;

constexpr const char* forward_label = "attention forward";
constexpr const char* backward_label = "attention backward";

std::size_t rows_of(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens);
}
/// Floats of row_dots.
std::size_t dots_of(const AttentionShape& shape) {
  return static_cast<std::size_t>(2 * shape.batch * shape.heads * padded_tokens(shape.tokens));
}

Access reads_table(const float* table, const AttentionShape& shape) {
  return read(table, table == nullptr ? 0 : static_cast<std::size_t>(shape.tokens * shape.head_dim / 2));
}

/// Calls `queue` with what the forward kernel touches.
template <class Queue>
void with_accesses(const AttentionForward<bfloat16>& of, const AttentionRotation<float>& rotation,
                   const Queue& queue) {
  const AttentionShape& shape = of.shape;
  queue({heads_access(of.query, shape, shape.heads, false),
         heads_access(of.key, shape, shape.kv_heads, false),
         heads_access(of.value, shape, shape.kv_heads, false),
         heads_access(of.output, shape, shape.heads, true), write(of.log_sum_exp, rows_of(shape)),
         read(of.sinks, shape.sinks ? static_cast<std::size_t>(shape.heads) : 0),
         reads_table(rotation.cosine, shape), reads_table(rotation.sine, shape)});
}

/// The same backward. `describes`: forms the queries' dots itself.
template <class Queue>
void with_accesses(const AttentionBackward<bfloat16>& of, const AttentionRotation<float>& rotation,
                   bool describes, const Queue& queue) {
  const AttentionShape& shape = of.shape;
  queue({heads_access(of.query, shape, shape.heads, false),
         heads_access(of.key, shape, shape.kv_heads, false),
         heads_access(of.value, shape, shape.kv_heads, false),
         heads_access(of.output_gradient, shape, shape.heads, false),
         describes ? heads_access(of.output, shape, shape.heads, false)
                   : read(static_cast<const float*>(of.row_dots), dots_of(shape)),
         describes ? read(of.log_sum_exp, rows_of(shape)) : Access{},
         heads_access(of.query_gradient, shape, shape.heads, true),
         heads_access(of.key_gradient, shape, shape.kv_heads, true),
         heads_access(of.value_gradient, shape, shape.kv_heads, true), reads_table(rotation.cosine, shape),
         reads_table(rotation.sine, shape)});
}

template <class Kernel>
void launch_forward(Stream<Cuda>& stream, const AttentionForward<bfloat16>& of,
                    const AttentionRotation<float>& rotation) {
  with_accesses(of, rotation, [&](Accesses accesses) {
    launch(stream, forward_label, accesses,
           Teams<Kernel::threads>{Kernel::teams(of.shape), Kernel::scratch_bytes}, Kernel{of, rotation});
  });
  stream.note_flops(attention_flops(of.shape, 2));
}

template <int HeadDim>
void describe_queries(Stream<Cuda>& stream, const AttentionBackward<bfloat16>& of) {
  using Kernel = DescribeQueries<HeadDim, MatrixUnits>;
  const AttentionShape& shape = of.shape;
  launch(stream, "attention backward: dots",
         {heads_access(of.output, shape, shape.heads, false),
          heads_access(of.output_gradient, shape, shape.heads, false), read(of.log_sum_exp, rows_of(shape)),
          write(of.row_dots, dots_of(shape))},
         Teams<Kernel::threads>{Kernel::teams(shape)}, Kernel{of});
}

template <class Kernel>
void launch_backward(Stream<Cuda>& stream, const AttentionBackward<bfloat16>& of,
                     const AttentionRotation<float>& rotation) {
  if (!Kernel::describes) describe_queries<Kernel::head_dim>(stream, of);
  with_accesses(of, rotation, Kernel::describes, [&](Accesses accesses) {
    launch(stream, backward_label, accesses,
           Teams<Kernel::threads>{Kernel::teams(of.shape), Kernel::scratch_bytes}, Kernel{of, rotation});
  });
  stream.note_flops(attention_flops(of.shape, 5));
}

#if ENCORE_HAVE_CUTLASS
/// `run(programmatic)` queues one of HopperAttention's kernels. Where several blocks fit on a multiprocessor, none should
/// begin before the kernel before is over: the first, which have most to do, would crowd where that one ends first.
template <class Run>
void launch_on_hopper(Stream<Cuda>& stream, const char* label, Accesses accesses, double flops,
                      const Run& run) {
  stream.note_launch(label, accesses);
  stream.note_flops(flops);
  if (stream.mode() == StreamMode::prime) HopperAttention::load();
  if (stream.runs_nothing()) return;
  const NodeScope node(stream, label, accesses);
  run(node.follows_kernel());
}
#endif

bool goes_to_hopper(const Stream<Cuda>& stream, const AttentionShape& shape) {
  return shape.head_dim == 64 && shape.tokens >= hopper_tokens && has_hopper(stream);
}

/// Blocks of so many queries, of all heads.
std::int64_t blocks_of(const AttentionShape& shape, std::int64_t queries) {
  return shape.batch * shape.heads * ((shape.tokens + queries - 1) / queries);
}

/// An H200 has 132 multiprocessors: blocks are as large as leave one for almost each.
constexpr std::int64_t enough_blocks = 100;

/// Groups of warps that share 64 rows: more where there are few blocks.
[[maybe_unused]] int forward_groups(const AttentionShape& shape) {
  const std::int64_t blocks = blocks_of(shape, 64);
  return blocks < enough_blocks ? 4 : blocks < 4 * enough_blocks ? 2 : 1;
}
[[maybe_unused]] int backward_groups(const AttentionShape& shape) {
  return blocks_of(shape, 64) < enough_blocks ? 2 : 1;
}

}  // namespace

bool has_hopper(const Stream<Cuda>& stream) {
  const cudaDeviceProp& device = stream.execution_space().cuda_device_prop();
  return ENCORE_HAVE_CUTLASS && device.major == 9 && device.minor == 0;
}

void run_matrix_units(Stream<Cuda>& stream, const AttentionForward<bfloat16>& of,
                      const AttentionRotation<float>& rotation) {
#if ENCORE_HAVE_CUTLASS
  if (goes_to_hopper(stream, of.shape))
    return with_accesses(of, {}, [&](Accesses accesses) {
      launch_on_hopper(stream, forward_label, accesses, attention_flops(of.shape, 2), [&](bool) {
        HopperAttention::run(of, forward_groups(of.shape), false, stream.execution_space().cuda_stream());
      });
    });
#endif
  using U = MatrixUnits;
  if (of.shape.head_dim == 64) {
    if (blocks_of(of.shape, 64) >= enough_blocks)
      return launch_forward<MatrixAttentionForward<64, 2, 2, 4, 32, U>>(stream, of, rotation);
    if (blocks_of(of.shape, 32) >= enough_blocks)
      return launch_forward<MatrixAttentionForward<64, 1, 2, 4, 32, U>>(stream, of, rotation);
    return launch_forward<MatrixAttentionForward<64, 1, 1, 4, 32, U>>(stream, of, rotation);
  }
  if (blocks_of(of.shape, 64) >= enough_blocks)
    return launch_forward<MatrixAttentionForward<128, 1, 4, 2, 32, U>>(stream, of, rotation);
  launch_forward<MatrixAttentionForward<128, 1, 1, 4, 32, U>>(stream, of, rotation);
}

void run_matrix_units(Stream<Cuda>& stream, const AttentionBackward<bfloat16>& of,
                      const AttentionRotation<float>& rotation) {
#if ENCORE_HAVE_CUTLASS
  if (goes_to_hopper(stream, of.shape)) {
    describe_queries<64>(stream, of);
    return with_accesses(of, rotation, false, [&](Accesses accesses) {
      launch_on_hopper(stream, backward_label, accesses, attention_flops(of.shape, 5),
                       [&](bool programmatic) {
                         const int groups = backward_groups(of.shape);
                         HopperAttention::run(of, rotation, groups, programmatic && groups > 1,
                                              stream.execution_space().cuda_stream());
                       });
    });
  }
#endif
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
