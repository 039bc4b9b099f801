// SPDX-License-Identifier: Apache-2.0
#include "attention_host_kernels.hpp"
#include "attention_shapes.hpp"

#include <encore/backend/launch.hpp>

namespace encore::backend {

namespace impl {

namespace {

template <class T>
struct ForwardKernel {
  AttentionForward<T> operands;
  void operator()(const HostTeam& team) const {
    HostAttention<T>::forward(operands, team.league_rank(), team.scratch<std::byte>());
  }
};

template <class T>
struct QueryGradientKernel {
  AttentionBackward<T> operands;
  void operator()(const HostTeam& team) const {
    HostAttention<T>::query_gradient(operands, team.league_rank(), team.scratch<std::byte>());
  }
};

template <class T>
struct KeyGradientKernel {
  AttentionBackward<T> operands;
  void operator()(const HostTeam& team) const {
    HostAttention<T>::key_gradient(operands, team.league_rank(), team.scratch<std::byte>());
  }
};

}  // namespace

}  // namespace impl

template <class Space>
struct Attention<Space>::Implementation {};

template <class Space>
Attention<Space>::Attention(Stream<Space>&) {}

template <class Space>
Attention<Space>::~Attention() = default;

template <class Space>
template <class T>
AttentionEngine Attention<Space>::engine(const AttentionShape&, const AttentionDropout&) const {
  return AttentionEngine::portable;
}

template <class Space>
template <class T>
bool Attention<Space>::rotates_gradients(const AttentionShape&, const AttentionDropout&) const {
  return false;
}

template <class Space>
template <class T>
bool Attention<Space>::rotates_inputs(const AttentionShape&, const AttentionDropout&) const {
  return false;
}

template <class Space>
void Attention<Space>::force(AttentionEngine engine) {
  if (engine != AttentionEngine::portable)
    throw DeviceError(
        std::string(engine == AttentionEngine::cudnn ? "cuDNN attention" : "attention on matrix units") +
        " runs on CUDA only: use the portable engine on " + std::string(name_of(backend_of<Space>())));
}

template <class Space>
template <class T>
std::size_t Attention<Space>::workspace_bytes(const AttentionShape& shape, const AttentionDropout&) const {
  impl::check_shape(shape);
  return static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens) * sizeof(Accumulator<T>);
}

template <class Space>
template <class T>
void Attention<Space>::forward(Stream<Space>& stream, const AttentionShape& shape,
                               const AttentionDropout& dropout, HeadsOperand<const T> query,
                               HeadsOperand<const T> key, HeadsOperand<const T> value, HeadsOperand<T> output,
                               Accumulator<T>* log_sum_exp, const Accumulator<T>* sinks,
                               const AttentionRotation<Accumulator<T>>& rotation) {
  impl::check_shape(shape);
  impl::check_no_rotation(shape, rotation);
  impl::check_sinks(shape, sinks);
  if (shape.batch == 0 || shape.tokens == 0) return;
  const std::int64_t rows = shape.batch * shape.heads;
  const std::int64_t blocks = (shape.tokens + impl::host_queries - 1) / impl::host_queries;
  launch(stream, "attention forward",
         {impl::heads_access(query, shape, shape.heads, false),
          impl::heads_access(key, shape, shape.kv_heads, false),
          impl::heads_access(value, shape, shape.kv_heads, false),
          impl::heads_access(output, shape, shape.heads, true),
          write(log_sum_exp, static_cast<std::size_t>(rows * shape.tokens)),
          read(sinks, shape.sinks ? static_cast<std::size_t>(shape.heads) : 0),
          read(dropout.probability, dropout.probability != nullptr ? 1 : 0),
          read(dropout.state, dropout.state != nullptr ? 1 : 0)},
         Teams<32>{rows * blocks, impl::HostAttention<T>::forward_scratch_bytes(shape.head_dim)},
         impl::ForwardKernel<T>{{shape, dropout, query, key, value, output, log_sum_exp, sinks}});
  stream.note_flops(impl::attention_flops(shape, 2));
}

template <class Space>
template <class T>
void Attention<Space>::backward(Stream<Space>& stream, const AttentionShape& shape,
                                const AttentionDropout& dropout, HeadsOperand<const T> query,
                                HeadsOperand<const T> key, HeadsOperand<const T> value,
                                HeadsOperand<const T> output, const Accumulator<T>* log_sum_exp,
                                HeadsOperand<const T> output_gradient, HeadsOperand<T> query_gradient,
                                HeadsOperand<T> key_gradient, HeadsOperand<T> value_gradient,
                                std::byte* workspace, const AttentionRotation<Accumulator<T>>& rotation) {
  impl::check_shape(shape);
  impl::check_no_rotation(shape, rotation);
  if (shape.batch == 0 || shape.tokens == 0) return;
  using A = Accumulator<T>;
  auto* row_dots = reinterpret_cast<A*>(workspace);
  const auto rows = static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens);
  const impl::AttentionBackward<T> operands{shape,        dropout,        query,           key,
                                            value,        output,         output_gradient, query_gradient,
                                            key_gradient, value_gradient, log_sum_exp,     row_dots};
  const Access reads_query = impl::heads_access(query, shape, shape.heads, false);
  const Access reads_key = impl::heads_access(key, shape, shape.kv_heads, false);
  const Access reads_value = impl::heads_access(value, shape, shape.kv_heads, false);
  const Access reads_output_gradient = impl::heads_access(output_gradient, shape, shape.heads, false);
  const Access reads_log_sum_exp = read(log_sum_exp, rows);
  const Access reads_probability = read(dropout.probability, dropout.probability != nullptr ? 1 : 0);
  const Access reads_state = read(dropout.state, dropout.state != nullptr ? 1 : 0);

  const std::int64_t query_blocks = (shape.tokens + impl::host_queries - 1) / impl::host_queries;
  launch(stream, "attention backward: queries",
         {reads_query, reads_key, reads_value, reads_output_gradient, reads_log_sum_exp, reads_probability,
          reads_state, impl::heads_access(output, shape, shape.heads, false), write(row_dots, rows),
          impl::heads_access(query_gradient, shape, shape.heads, true)},
         Teams<32>{shape.batch * shape.heads * query_blocks,
                   impl::HostAttention<T>::query_gradient_scratch_bytes(shape.head_dim)},
         impl::QueryGradientKernel<T>{operands});
  stream.note_flops(impl::attention_flops(shape, 1));  // Five products in all, two of them twice here.

  const std::int64_t key_blocks = (shape.tokens + impl::host_keys - 1) / impl::host_keys;
  launch(stream, "attention backward: keys and values",
         {reads_query, reads_key, reads_value, reads_output_gradient, reads_log_sum_exp, reads_probability,
          reads_state, read(static_cast<const A*>(row_dots), rows),
          impl::heads_access(key_gradient, shape, shape.kv_heads, true),
          impl::heads_access(value_gradient, shape, shape.kv_heads, true)},
         Teams<32>{shape.batch * shape.kv_heads * key_blocks,
                   impl::HostAttention<T>::key_gradient_scratch_bytes(shape.head_dim)},
         impl::KeyGradientKernel<T>{operands});
  stream.note_flops(impl::attention_flops(shape, 4));
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                         \
  template bool Attention<SPACE>::rotates_inputs<T>(const AttentionShape&, const AttentionDropout&) const;   \
  template bool Attention<SPACE>::rotates_gradients<T>(const AttentionShape&, const AttentionDropout&)       \
      const;                                                                                                 \
  template AttentionEngine Attention<SPACE>::engine<T>(const AttentionShape&, const AttentionDropout&)       \
      const;                                                                                                 \
  template std::size_t Attention<SPACE>::workspace_bytes<T>(const AttentionShape&, const AttentionDropout&)  \
      const;                                                                                                 \
  template void Attention<SPACE>::forward<T>(                                                                \
      Stream<SPACE>&, const AttentionShape&, const AttentionDropout&, HeadsOperand<const T>,                 \
      HeadsOperand<const T>, HeadsOperand<const T>, HeadsOperand<T>, Accumulator<T>*, const Accumulator<T>*, \
      const AttentionRotation<Accumulator<T>>&);                                                             \
  template void Attention<SPACE>::backward<T>(                                                               \
      Stream<SPACE>&, const AttentionShape&, const AttentionDropout&, HeadsOperand<const T>,                 \
      HeadsOperand<const T>, HeadsOperand<const T>, HeadsOperand<const T>, const Accumulator<T>*,            \
      HeadsOperand<const T>, HeadsOperand<T>, HeadsOperand<T>, HeadsOperand<T>, std::byte*,                  \
      const AttentionRotation<Accumulator<T>>&);
ENCORE_IF_SERIAL(template class Attention<Kokkos::Serial>;)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double))
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, float))
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, bfloat16))
ENCORE_IF_OPENMP(template class Attention<Kokkos::OpenMP>;)
ENCORE_IF_OPENMP(ENCORE_INSTANTIATE(Kokkos::OpenMP, float))
ENCORE_IF_OPENMP(ENCORE_INSTANTIATE(Kokkos::OpenMP, bfloat16))
#undef ENCORE_INSTANTIATE

}  // namespace encore::backend
