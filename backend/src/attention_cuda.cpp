// SPDX-License-Identifier: Apache-2.0
#include "attention_cudnn.hpp"
#include "attention_matrix_cuda.hpp"
#include "attention_portable_cuda.hpp"
#include "load_by_capture_cuda.hpp"

#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_resource.hpp>

#include <optional>
#include <vector>

namespace encore::backend {

namespace impl {

namespace {

/// Shape and strides of a fused projection's packed output, by which cuDNN's support and workspace are told before
/// any operand is known.
CudnnAttentionShape packed_shape(const AttentionShape& shape, bool backward) {
  const std::int64_t token = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const CudnnStrides inputs{shape.tokens * token, token, shape.head_dim};
  const CudnnStrides outputs{shape.tokens * shape.heads * shape.head_dim, shape.heads * shape.head_dim,
                             shape.head_dim};
  const std::int64_t window = window_of(shape) < shape.tokens ? shape.window : 0;
  return {shape.batch,    shape.tokens,
          shape.heads,    shape.kv_heads,
          shape.head_dim, shape.scale,
          window,         shape.sinks,
          backward,       {inputs, inputs, inputs, outputs, outputs, inputs, inputs, inputs}};
}

/// Whether all rows can be copied by 16 bytes.
template <class T>
bool aligned(const HeadsOperand<T>& operand) {
  return reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0 && operand.batch_stride % 8 == 0 &&
         operand.token_stride % 8 == 0 && operand.head_stride % 8 == 0;
}

template <class T>
CudnnStrides strides_of(const HeadsOperand<T>& operand) {
  return {operand.batch_stride, operand.token_stride, operand.head_stride};
}

template <class T>
void* pointer_of(const HeadsOperand<T>& operand) {
  return const_cast<void*>(static_cast<const void*>(operand.data));
}

}  // namespace

}  // namespace impl

template <class Space>
struct Attention<Space>::Implementation {
  std::optional<AttentionEngine> forced;
  bool has_hopper;

  explicit Implementation(const Stream<Space>& stream) : has_hopper(impl::has_hopper(stream)) {}

#if ENCORE_HAVE_CUDNN
  std::unique_ptr<impl::CudnnAttention> cudnn;
  /// Kept until the end, since recorded graphs hold their addresses.
  std::vector<Allocation<Space>> workspaces;

  impl::CudnnAttention& library() {
    if (cudnn == nullptr) cudnn = std::make_unique<impl::CudnnAttention>();
    return *cudnn;
  }

  /// What is known about a shape.
  struct Support {
    AttentionShape shape;
    std::string refusal;  ///< empty when cuDNN computes it
    std::size_t workspace_bytes;
  };
  std::vector<Support> supports;

  const Support& support_of(const AttentionShape& shape) {
    for (const Support& known : supports)
      if (known.shape == shape) return known;
    Support support{shape, {}, 0};
    if (shape.head_dim % 8 != 0 || shape.head_dim > 128) {
      support.refusal = "head_dim must be a multiple of 8 up to 128";
    } else if (shape.batch == 0 || shape.tokens == 0) {
      support.refusal = "there is nothing to compute";
    } else {
      for (const bool backward : {false, true}) {
        const auto* plan = library().plan(impl::packed_shape(shape, backward), &support.refusal);
        if (plan == nullptr) break;
        support.workspace_bytes = impl::CudnnAttention::workspace_bytes(*plan);
      }
    }
    return supports.emplace_back(std::move(support));
  }

  /// Empty when cuDNN computes this; otherwise why not.
  template <class T>
  std::string refusal(const AttentionShape& shape, const AttentionDropout& dropout) {
    if constexpr (!std::is_same_v<T, bfloat16>) return "it computes bfloat16 only";
    if (dropout.probability != nullptr) return "dropout is left to the portable kernel";
    return support_of(shape).refusal;
  }

  /// The plan for these very operands; null where the portable kernel takes them.
  template <class... Operands>
  impl::CudnnAttention::Plan* plan_for(Stream<Space>& stream, const AttentionShape& shape, bool backward,
                                       const Operands&... operands) {
    std::string reason = "an address or stride is not a multiple of 16 bytes";
    if ((impl::aligned(operands) && ...)) {
      impl::CudnnAttentionShape exact = impl::packed_shape(shape, backward);
      exact.strides = {impl::strides_of(operands)...};
      if (stream.mode() == StreamMode::record && !library().knows(exact))
        throw CaptureError("attention with " + impl::shape_text(shape) +
                           " is first met inside a recording: run or prime it once before");
      if (auto* plan = library().plan(exact, &reason)) return plan;
    }
    if (forced == AttentionEngine::cudnn) throw refused(shape, reason);
    return nullptr;
  }

  /// Memory for a plan that needs more than the caller brings.
  std::byte* workspace_of(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    for (const Allocation<Space>& workspace : workspaces)
      if (workspace.bytes() >= bytes) return workspace.data();
    return workspaces.emplace_back("cuDNN attention workspace", bytes).data();
  }

  void run(Stream<Space>& stream, const char* label, impl::CudnnAttention::Plan& plan,
           const std::array<void*, impl::cudnn_operands>& data, const impl::CudnnRows& rows,
           const std::array<Access, impl::cudnn_operands + 2>& accesses, double flops, std::byte* workspace,
           std::size_t workspace_bytes) {
    const auto& a = accesses;
    if (stream.mode() == StreamMode::list) {
      stream.note_launch(label, {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]});
      return stream.note_flops(flops);
    }
    const std::size_t needed = impl::CudnnAttention::workspace_bytes(plan);
    std::byte* memory = needed <= workspace_bytes ? workspace : workspace_of(needed);
    const cudaStream_t native = stream.execution_space().cuda_stream();
    const auto call = [&] { library().run(plan, data, rows, memory, native); };
    if (impl::CudnnAttention::take_first_run(plan) && stream.mode() == StreamMode::prime)
      impl::load_by_capture(native, label, call);
    launch_native(stream, label,
                  {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9],
                   write(memory, memory == nullptr ? 0 : needed)},
                  call);
    stream.note_flops(flops);
  }
#else
  template <class T>
  std::string refusal(const AttentionShape&, const AttentionDropout&) {
    return "Encore was built without it";
  }
#endif

  DeviceError refused(const AttentionShape& shape, const std::string& reason) const {
    const char* name = forced == AttentionEngine::cudnn ? "cuDNN attention" : "attention on matrix units";
    return DeviceError(std::string(name) + " was forced for " + impl::shape_text(shape) + ", but " + reason);
  }

  /// Empty when the matrix units' kernels compute this; otherwise why not.
  template <class T>
  static std::string refusal_of_matrix_units(const AttentionShape& shape, const AttentionDropout& dropout) {
    if constexpr (!std::is_same_v<T, bfloat16>) return "it computes bfloat16 only";
    if (dropout.probability != nullptr) return "dropout is left to the portable kernel";
    if (!impl::fits_matrix_units(shape)) return "head_dim must be 64 or 128, and the scale above zero";
    return {};
  }

  template <class T>
  AttentionEngine engine(const AttentionShape& shape, const AttentionDropout& dropout) {
    if (forced == AttentionEngine::portable) return AttentionEngine::portable;
    if (forced != AttentionEngine::cudnn) {
      const std::string reason = refusal_of_matrix_units<T>(shape, dropout);
      if (reason.empty() && (forced || impl::prefers_matrix_units(shape, has_hopper)))
        return AttentionEngine::matrix_units;
      if (forced) throw refused(shape, reason);
    }
    const std::string reason = refusal<T>(shape, dropout);
    if (reason.empty()) return AttentionEngine::cudnn;
    if (forced) throw refused(shape, reason);
    return refusal_of_matrix_units<T>(shape, dropout).empty() ? AttentionEngine::matrix_units
                                                              : AttentionEngine::portable;
  }

  /// Whether the matrix units' kernels take these very operands.
  template <class T, class... Operands>
  bool takes_matrix_units(const AttentionShape& shape, const Operands&... operands) const {
    if ((impl::aligned(operands) && ...)) return true;
    if (forced == AttentionEngine::matrix_units)
      throw refused(shape, "an address or stride is not a multiple of 16 bytes");
    return false;
  }
};

template <class Space>
Attention<Space>::Attention(Stream<Space>& stream)
    : implementation_(std::make_shared<Implementation>(stream)) {}

template <class Space>
Attention<Space>::~Attention() = default;

template <class Space>
template <class T>
AttentionEngine Attention<Space>::engine(const AttentionShape& shape, const AttentionDropout& dropout) const {
  impl::check_shape(shape);
  return implementation_->template engine<T>(shape, dropout);
}

template <class Space>
template <class T>
bool Attention<Space>::rotates_gradients(const AttentionShape& shape, const AttentionDropout& dropout) const {
  return engine<T>(shape, dropout) == AttentionEngine::matrix_units;
}

template <class Space>
template <class T>
bool Attention<Space>::rotates_inputs(const AttentionShape& shape, const AttentionDropout& dropout) const {
  return rotates_gradients<T>(shape, dropout) && impl::turns_inputs(shape);
}

template <class Space>
void Attention<Space>::force(AttentionEngine engine) {
#if !ENCORE_HAVE_CUDNN
  if (engine == AttentionEngine::cudnn)
    throw DeviceError("cuDNN attention cannot be forced: Encore was built without it (ENCORE_ENABLE_CUDNN)");
#endif
  implementation_->forced = engine;
}

template <class Space>
template <class T>
std::size_t Attention<Space>::workspace_bytes(const AttentionShape& shape,
                                              const AttentionDropout& dropout) const {
  impl::check_shape(shape);
  // Enough for the other engines in any case: operands that cuDNN cannot take go to the portable one.
  auto bytes = static_cast<std::size_t>(2 * shape.batch * shape.heads * impl::padded_tokens(shape.tokens)) *
               sizeof(float);
#if ENCORE_HAVE_CUDNN
  if (implementation_->template engine<T>(shape, dropout) == AttentionEngine::cudnn)
    bytes = std::max(bytes, implementation_->support_of(shape).workspace_bytes);
#endif
  return bytes;
}

template <class Space>
template <class T>
void Attention<Space>::forward(Stream<Space>& stream, const AttentionShape& shape,
                               const AttentionDropout& dropout, HeadsOperand<const T> query,
                               HeadsOperand<const T> key, HeadsOperand<const T> value, HeadsOperand<T> output,
                               Accumulator<T>* log_sum_exp, const Accumulator<T>* sinks,
                               const AttentionRotation<Accumulator<T>>& rotation) {
  impl::check_shape(shape);
  impl::check_sinks(shape, sinks);
  if (shape.batch == 0 || shape.tokens == 0) return;
  const impl::AttentionForward<T> operands{shape, dropout, query, key, value, output, log_sum_exp, sinks};
  [[maybe_unused]] const AttentionEngine engine = implementation_->template engine<T>(shape, dropout);
  if constexpr (std::is_same_v<T, bfloat16>)
    if (engine == AttentionEngine::matrix_units &&
        implementation_->template takes_matrix_units<T>(shape, query, key, value, output))
      return impl::run_matrix_units(stream, operands, rotation);
  impl::check_no_rotation(shape, rotation);
#if ENCORE_HAVE_CUDNN
  if (engine == AttentionEngine::cudnn) {
    keep_for_recording(stream, implementation_);
    auto* plan = implementation_->plan_for(stream, shape, false, query, key, value, output);
    if (plan != nullptr)
      return implementation_->run(
          stream, "attention forward", *plan,
          {impl::pointer_of(query), impl::pointer_of(key), impl::pointer_of(value), impl::pointer_of(output)},
          {log_sum_exp, sinks},
          {impl::heads_access(query, shape, shape.heads, false),
           impl::heads_access(key, shape, shape.kv_heads, false),
           impl::heads_access(value, shape, shape.kv_heads, false),
           impl::heads_access(output, shape, shape.heads, true), write(log_sum_exp, impl::rows_of(shape)),
           read(sinks, shape.sinks ? static_cast<std::size_t>(shape.heads) : 0)},
          impl::attention_flops(shape, 2), nullptr, 0);
  }
#endif
  impl::run_portable(stream, operands);
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
  if (shape.batch == 0 || shape.tokens == 0) return;
  const impl::AttentionBackward<T> operands{
      shape,        dropout,        query,           key,
      value,        output,         output_gradient, query_gradient,
      key_gradient, value_gradient, log_sum_exp,     reinterpret_cast<float*>(workspace)};
  [[maybe_unused]] const AttentionEngine engine = implementation_->template engine<T>(shape, dropout);
  if constexpr (std::is_same_v<T, bfloat16>)
    if (engine == AttentionEngine::matrix_units &&
        implementation_->template takes_matrix_units<T>(shape, query, key, value, output, output_gradient,
                                                        query_gradient, key_gradient, value_gradient))
      return impl::run_matrix_units(stream, operands, rotation);
  impl::check_no_rotation(shape, rotation);
#if ENCORE_HAVE_CUDNN
  if (engine == AttentionEngine::cudnn) {
    keep_for_recording(stream, implementation_);
    auto* plan = implementation_->plan_for(stream, shape, true, query, key, value, output, output_gradient,
                                           query_gradient, key_gradient, value_gradient);
    if (plan != nullptr)
      return implementation_->run(
          stream, "attention backward", *plan,
          {impl::pointer_of(query), impl::pointer_of(key), impl::pointer_of(value), impl::pointer_of(output),
           impl::pointer_of(output_gradient), impl::pointer_of(query_gradient),
           impl::pointer_of(key_gradient), impl::pointer_of(value_gradient)},
          {const_cast<float*>(log_sum_exp), nullptr},
          {impl::heads_access(query, shape, shape.heads, false),
           impl::heads_access(key, shape, shape.kv_heads, false),
           impl::heads_access(value, shape, shape.kv_heads, false),
           impl::heads_access(output, shape, shape.heads, false),
           impl::heads_access(output_gradient, shape, shape.heads, false),
           impl::heads_access(query_gradient, shape, shape.heads, true),
           impl::heads_access(key_gradient, shape, shape.kv_heads, true),
           impl::heads_access(value_gradient, shape, shape.kv_heads, true),
           read(log_sum_exp, impl::rows_of(shape))},
          impl::attention_flops(shape, 5), workspace, workspace_bytes<T>(shape, dropout));
  }
#endif
  impl::run_portable(stream, operands);
}

#define ENCORE_INSTANTIATE(T)                                                                              \
  template bool Attention<Kokkos::Cuda>::rotates_inputs<T>(const AttentionShape&, const AttentionDropout&) \
      const;                                                                                               \
  template bool Attention<Kokkos::Cuda>::rotates_gradients<T>(const AttentionShape&,                       \
                                                              const AttentionDropout&) const;              \
  template AttentionEngine Attention<Kokkos::Cuda>::engine<T>(const AttentionShape&,                       \
                                                              const AttentionDropout&) const;              \
  template std::size_t Attention<Kokkos::Cuda>::workspace_bytes<T>(const AttentionShape&,                  \
                                                                   const AttentionDropout&) const;         \
  template void Attention<Kokkos::Cuda>::forward<T>(                                                       \
      Stream<Kokkos::Cuda>&, const AttentionShape&, const AttentionDropout&, HeadsOperand<const T>,        \
      HeadsOperand<const T>, HeadsOperand<const T>, HeadsOperand<T>, float*, const float*,                 \
      const AttentionRotation<float>&);                                                                    \
  template void Attention<Kokkos::Cuda>::backward<T>(                                                      \
      Stream<Kokkos::Cuda>&, const AttentionShape&, const AttentionDropout&, HeadsOperand<const T>,        \
      HeadsOperand<const T>, HeadsOperand<const T>, HeadsOperand<const T>, const float*,                   \
      HeadsOperand<const T>, HeadsOperand<T>, HeadsOperand<T>, HeadsOperand<T>, std::byte*,                \
      const AttentionRotation<float>&);
template class Attention<Kokkos::Cuda>;
ENCORE_INSTANTIATE(float)
ENCORE_INSTANTIATE(bfloat16)
#undef ENCORE_INSTANTIATE

}  // namespace encore::backend
