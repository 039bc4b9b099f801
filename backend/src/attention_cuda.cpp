// SPDX-License-Identifier: Apache-2.0
#include "attention_cudnn.hpp"
#include "attention_kernels_cuda.hpp"
#include "load_by_capture_cuda.hpp"

#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_resource.hpp>

#include <optional>
#include <vector>

namespace encore::backend {

namespace impl {

namespace {

template <int HeadDim, class T>
void launch_portable(Stream<Kokkos::Cuda>& stream, const AttentionForward<T>& operands) {
  using Kernel = CudaAttentionForward<HeadDim, T>;
  const AttentionShape& shape = operands.shape;
  const std::int64_t blocks = (shape.tokens + Kernel::queries - 1) / Kernel::queries;
  launch(stream, "attention forward", {},
         Teams<attention_threads>{shape.batch * shape.heads * blocks, Kernel::scratch_bytes},
         Kernel{operands});
}

template <int HeadDim, class T>
void launch_portable(Stream<Kokkos::Cuda>& stream, const AttentionBackward<T>& operands) {
  using QueryKernel = CudaAttentionQueryGradient<HeadDim, T>;
  using KeyKernel = CudaAttentionKeyGradient<HeadDim, T>;
  const AttentionShape& shape = operands.shape;
  const std::int64_t query_blocks = (shape.tokens + QueryKernel::queries - 1) / QueryKernel::queries;
  launch(stream, "attention backward: queries", {},
         Teams<attention_threads>{shape.batch * shape.heads * query_blocks, QueryKernel::scratch_bytes},
         QueryKernel{operands});
  const std::int64_t key_blocks = (shape.tokens + KeyKernel::keys - 1) / KeyKernel::keys;
  launch(stream, "attention backward: keys and values", {},
         Teams<attention_threads>{shape.batch * shape.kv_heads * key_blocks, KeyKernel::scratch_bytes},
         KeyKernel{operands});
}

template <class Operands>
void run_portable(Stream<Kokkos::Cuda>& stream, const Operands& operands) {
  if (operands.shape.head_dim <= 64) return launch_portable<64>(stream, operands);
  if (operands.shape.head_dim <= 128) return launch_portable<128>(stream, operands);
  launch_portable<256>(stream, operands);
}

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

template <class T>
bool aligned_for_cudnn(const HeadsOperand<T>& operand) {
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
  template <class T, class... Operands>
  impl::CudnnAttention::Plan* plan_for(Stream<Space>& stream, const AttentionShape& shape,
                                       const AttentionDropout& dropout, bool backward,
                                       const Operands&... operands) {
    if (engine<T>(shape, dropout) != AttentionEngine::cudnn) return nullptr;
    std::string reason = "an address or stride is not a multiple of 16 bytes";
    if ((impl::aligned_for_cudnn(operands) && ...)) {
      impl::CudnnAttentionShape exact = impl::packed_shape(shape, backward);
      exact.strides = {impl::strides_of(operands)...};
      if (stream.mode() == StreamMode::record && !library().knows(exact))
        throw CaptureError("attention with " + impl::shape_text(shape) +
                           " is first met inside a recording: run or prime it once before");
      if (auto* plan = library().plan(exact, &reason)) return plan;
    }
    if (forced == AttentionEngine::cudnn)
      throw DeviceError("cuDNN attention was forced for " + impl::shape_text(shape) + ", but " + reason);
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
           std::byte* workspace, std::size_t workspace_bytes) {
    if (stream.mode() == StreamMode::list) return stream.note_launch(label);
    const std::size_t needed = impl::CudnnAttention::workspace_bytes(plan);
    std::byte* memory = needed <= workspace_bytes ? workspace : workspace_of(needed);
    const cudaStream_t native = stream.execution_space().cuda_stream();
    const auto call = [&] { library().run(plan, data, rows, memory, native); };
    if (impl::CudnnAttention::take_first_run(plan) && stream.mode() == StreamMode::prime)
      impl::load_by_capture(native, label, call);
    launch_native(stream, label, {}, call);
  }
#else
  template <class T>
  std::string refusal(const AttentionShape&, const AttentionDropout&) {
    return "Encore was built without it";
  }
#endif

  template <class T>
  AttentionEngine engine(const AttentionShape& shape, const AttentionDropout& dropout) {
    if (forced == AttentionEngine::portable) return AttentionEngine::portable;
    const std::string reason = refusal<T>(shape, dropout);
    if (reason.empty()) return AttentionEngine::cudnn;
    if (forced == AttentionEngine::cudnn)
      throw DeviceError("cuDNN attention was forced for " + impl::shape_text(shape) + ", but " + reason);
    return AttentionEngine::portable;
  }
};

template <class Space>
Attention<Space>::Attention(Stream<Space>&) : implementation_(std::make_shared<Implementation>()) {}

template <class Space>
Attention<Space>::~Attention() = default;

template <class Space>
template <class T>
AttentionEngine Attention<Space>::engine(const AttentionShape& shape, const AttentionDropout& dropout) const {
  impl::check_shape(shape);
  return implementation_->template engine<T>(shape, dropout);
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
  // Enough for the portable engine in any case: operands that cuDNN cannot take go there.
  std::size_t bytes = static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens) * sizeof(float);
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
                               Accumulator<T>* log_sum_exp, const Accumulator<T>* sinks) {
  impl::check_shape(shape);
  impl::check_sinks(shape, sinks);
  if (shape.batch == 0 || shape.tokens == 0) return;
#if ENCORE_HAVE_CUDNN
  keep_for_recording(stream, implementation_);
  auto* plan =
      implementation_->template plan_for<T>(stream, shape, dropout, false, query, key, value, output);
  if (plan != nullptr)
    return implementation_->run(
        stream, "attention forward", *plan,
        {impl::pointer_of(query), impl::pointer_of(key), impl::pointer_of(value), impl::pointer_of(output)},
        {log_sum_exp, sinks}, nullptr, 0);
#endif
  impl::run_portable(
      stream, impl::AttentionForward<T>{shape, dropout, query, key, value, output, log_sum_exp, sinks});
}

template <class Space>
template <class T>
void Attention<Space>::backward(Stream<Space>& stream, const AttentionShape& shape,
                                const AttentionDropout& dropout, HeadsOperand<const T> query,
                                HeadsOperand<const T> key, HeadsOperand<const T> value,
                                HeadsOperand<const T> output, const Accumulator<T>* log_sum_exp,
                                HeadsOperand<const T> output_gradient, HeadsOperand<T> query_gradient,
                                HeadsOperand<T> key_gradient, HeadsOperand<T> value_gradient,
                                std::byte* workspace) {
  impl::check_shape(shape);
  if (shape.batch == 0 || shape.tokens == 0) return;
#if ENCORE_HAVE_CUDNN
  keep_for_recording(stream, implementation_);
  auto* plan =
      implementation_->template plan_for<T>(stream, shape, dropout, true, query, key, value, output,
                                            output_gradient, query_gradient, key_gradient, value_gradient);
  if (plan != nullptr)
    return implementation_->run(
        stream, "attention backward", *plan,
        {impl::pointer_of(query), impl::pointer_of(key), impl::pointer_of(value), impl::pointer_of(output),
         impl::pointer_of(output_gradient), impl::pointer_of(query_gradient), impl::pointer_of(key_gradient),
         impl::pointer_of(value_gradient)},
        {const_cast<float*>(log_sum_exp), nullptr}, workspace, workspace_bytes<T>(shape, dropout));
#endif
  impl::run_portable(stream,
                     impl::AttentionBackward<T>{shape, dropout, query, key, value, output, output_gradient,
                                                query_gradient, key_gradient, value_gradient, log_sum_exp,
                                                reinterpret_cast<float*>(workspace)});
}

#define ENCORE_INSTANTIATE(T)                                                                       \
  template AttentionEngine Attention<Kokkos::Cuda>::engine<T>(const AttentionShape&,                \
                                                              const AttentionDropout&) const;       \
  template std::size_t Attention<Kokkos::Cuda>::workspace_bytes<T>(const AttentionShape&,           \
                                                                   const AttentionDropout&) const;  \
  template void Attention<Kokkos::Cuda>::forward<T>(                                                \
      Stream<Kokkos::Cuda>&, const AttentionShape&, const AttentionDropout&, HeadsOperand<const T>, \
      HeadsOperand<const T>, HeadsOperand<const T>, HeadsOperand<T>, float*, const float*);         \
  template void Attention<Kokkos::Cuda>::backward<T>(                                               \
      Stream<Kokkos::Cuda>&, const AttentionShape&, const AttentionDropout&, HeadsOperand<const T>, \
      HeadsOperand<const T>, HeadsOperand<const T>, HeadsOperand<const T>, const float*,            \
      HeadsOperand<const T>, HeadsOperand<T>, HeadsOperand<T>, HeadsOperand<T>, std::byte*);
template class Attention<Kokkos::Cuda>;
ENCORE_INSTANTIATE(float)
ENCORE_INSTANTIATE(bfloat16)
#undef ENCORE_INSTANTIATE

}  // namespace encore::backend
