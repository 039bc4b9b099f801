// SPDX-License-Identifier: Apache-2.0
#include "blas_plan_cuda.hpp"
#include "blas_shapes.hpp"
#include "load_by_capture_cuda.hpp"
#include "product_tuner_cuda.hpp"

#include <encore/backend/blas_workspace.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_resource.hpp>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace encore::backend {

namespace impl {

namespace {

/// What NVIDIA recommends for Hopper.
constexpr std::size_t workspace_bytes = std::size_t(32) << 20;

std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

template <class T>
constexpr cudaDataType_t cuda_type_of = std::is_same_v<T, bfloat16> ? CUDA_R_16BF : CUDA_R_32F;

/// result = beta * addend + bias: all of a product whose operands do not matter, or what is left to add to one.
template <class T, class Result>
struct AddOnly {
  MatrixOperand<Result> result;
  const Result* addend;
  std::int64_t addend_stride;
  const T* bias;
  float beta;

  KOKKOS_FUNCTION void operator()(std::int64_t element) const {
    const std::int64_t i = element / result.columns;
    const std::int64_t j = element % result.columns;
    float value = 0;
    if (addend != nullptr) value = beta * static_cast<float>(addend[i * addend_stride + j]);
    if (bias != nullptr) value += static_cast<float>(bias[j]);
    result.data[i * result.stride + j] = Result(value);
  }
};

}  // namespace

}  // namespace impl

template <class Space>
struct Blas<Space>::Implementation {
  Implementation() {
    impl::check_cublas(cublasLtCreate(&handle), "starting cuBLASLt");
    description = "cuBLASLt " + std::to_string(cublasLtGetVersion());
    int device = 0;
    check_cuda(cudaGetDevice(&device), "starting cuBLASLt");
    check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "starting cuBLASLt");
  }
  ~Implementation() { (void)cublasLtDestroy(handle); }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  /// The plan for a key, made at its first use.
  impl::MatmulPlan& plan_for(Stream<Space>& stream, const impl::MatmulKey& key,
                             const impl::MatmulCall& call) {
    const auto known = plans.find(key);
    if (known != plans.end()) return known->second;
    if (stream.mode() == StreamMode::record)
      throw CaptureError(key.text() + " is first met inside a recording: run or prime it once before");
    impl::MatmulPlan plan(handle, key, impl::workspace_bytes, tuner ? impl::ProductTuner::candidates : 8);
    const Allocation<Space>& workspace = workspaces[static_cast<std::size_t>(stream.branch())];
    if (tuner)
      tuner->choose(handle, plan, key, call, workspace.data(), workspace.bytes(),
                    stream.execution_space().cuda_stream(), stream.mode() == StreamMode::execute);
    return plans.emplace(key, std::move(plan)).first->second;
  }

  /// A short product beside the main branch gets half of the device: one with a tile for each multiprocessor takes
  /// all their registers, and the kernels of the main branch then wait for it. (1.43 to 1.38 ms a step of tiny-launch
  /// on an H200.) A long one is better done quickly.
  std::int32_t multiprocessors_for(Branch branch, std::int64_t k) const {
    constexpr std::int64_t short_sum = 1024;
    return branch == Branch::beside && k <= short_sum ? multiprocessors / 2 : 0;
  }

  void run(Stream<Space>& stream, const impl::MatmulPlan& plan, const impl::MatmulCall& call) {
    const Allocation<Space>& workspace = workspaces[static_cast<std::size_t>(stream.branch())];
    plan.run(handle, call, workspace.data(), workspace.bytes(), stream.execution_space().cuda_stream());
  }

  /// Products of different branches of a graph may run at once; those of one never do.
  void make_workspace(const Stream<Space>& stream, const char* label) {
    Allocation<Space>& workspace = workspaces[static_cast<std::size_t>(stream.branch())];
    if (workspace.bytes() > 0) return;
    if (stream.mode() == StreamMode::record)
      throw CaptureError("the first product of a branch, '" + std::string(label) +
                         "', is inside a recording: run or prime it once before");
    workspace = Allocation<Space>("cuBLASLt workspace", impl::workspace_bytes);
  }

  cublasLtHandle_t handle = nullptr;
  int multiprocessors = 0;
  std::string description;
  std::array<Allocation<Space>, branch_count> workspaces;  ///< empty until a branch has products
  std::unordered_map<impl::MatmulKey, impl::MatmulPlan, impl::MatmulKeyHash> plans;
  std::unique_ptr<impl::ProductTuner> tuner;
};

template <class Space>
Blas<Space>::Blas(Stream<Space>&) : implementation_(std::make_shared<Implementation>()) {}

template <class Space>
Blas<Space>::~Blas() = default;

template <class Space>
template <class T, class Result>
void Blas<Space>::multiply(Stream<Space>& stream, const char* label, Transpose transpose_first,
                           MatrixOperand<const T> first, Transpose transpose_second,
                           MatrixOperand<const T> second, MatrixOperand<Result> result,
                           const MatrixProductOptions<Result>& options) {
  const auto [m, n, k] =
      impl::check_product(label, transpose_first, first, transpose_second, second, result, options);
  if (m == 0 || n == 0) return;
  const bool adds = options.addend != nullptr && options.beta != 0.0F;
  const Result* addend = adds ? options.addend : result.data;
  const std::int64_t addend_stride =
      adds && options.addend_stride != 0 ? options.addend_stride : result.stride;
  const auto* bias = static_cast<const T*>(options.bias);
  const Access result_access = impl::matrix_access(result, true);
  const Access addend_access =
      adds ? impl::matrix_access(MatrixOperand<const Result>{addend, m, n, addend_stride}, false) : Access{};
  const Access bias_access = bias != nullptr ? read(bias, static_cast<std::size_t>(n)) : Access{};
  if (k == 0 || options.alpha == 0.0F) {
    launch(stream, label, {result_access, addend_access, bias_access}, Range{m * n},
           impl::AddOnly<T, Result>{result, adds ? addend : nullptr, addend_stride, bias, options.beta});
    return;
  }
  // cuBLASLt wants the bias in the result's type.
  constexpr bool fuses_bias = std::is_same_v<T, Result>;
  const bool fused_bias = fuses_bias && bias != nullptr;
  const Accesses accesses{impl::matrix_access(first, false), impl::matrix_access(second, false),
                          addend_access, fused_bias ? bias_access : Access{}, result_access};
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (stream.mode() == StreamMode::list) {  // The operands are no memory, so no algorithm is chosen for them.
    stream.note_launch(label, accesses);
    stream.note_flops(flops);
    if (bias != nullptr && !fused_bias) stream.note_launch(label, {result_access, bias_access});
    return;
  }
  const impl::MatmulKey key{
      m,
      n,
      k,
      first.stride,
      second.stride,
      addend_stride,
      result.stride,
      transpose_first == Transpose::yes,
      transpose_second == Transpose::yes,
      fused_bias,
      addend == result.data,
      impl::cuda_type_of<T>,
      impl::cuda_type_of<Result>,
      impl::alignment_of(first.data),
      impl::alignment_of(second.data),
      impl::alignment_of(addend),
      std::min(impl::alignment_of(result.data), impl::alignment_of(fused_bias ? bias : nullptr)),
      implementation_->multiprocessors_for(stream.branch(), k)};
  const impl::MatmulCall call{
      first.data, second.data, addend, result.data, bias, options.alpha, adds ? options.beta : 0.0F};
  implementation_->make_workspace(stream, label);
  impl::MatmulPlan& plan = implementation_->plan_for(stream, key, call);
  const auto run = [&] { implementation_->run(stream, plan, call); };
  keep_for_recording(stream, implementation_);
  if (stream.mode() == StreamMode::prime && !plan.loaded)
    impl::load_by_capture(stream.execution_space().cuda_stream(), label, run);
  plan.loaded = true;
  launch_native(stream, label, accesses, run);
  stream.note_flops(flops);
  if (bias != nullptr && !fused_bias)
    launch(stream, label, {bias_access, result_access}, Range{m * n},
           impl::AddOnly<T, Result>{result, result.data, result.stride, bias, 1.0F});
}

template <class Space>
const char* Blas<Space>::description() const {
  return implementation_->description.c_str();
}

template <class Space>
void Blas<Space>::force(BlasEngine engine) {
  if (engine != BlasEngine::library)
    throw DeviceError("matrix products on CUDA are cuBLASLt's: the portable kernel runs on hosts only");
}

template <class Space>
BlasEngine Blas<Space>::engine() const {
  return BlasEngine::library;
}

template <class Space>
void Blas<Space>::enable_tuning(bool enabled, std::shared_ptr<TuningCache> cache) {
  implementation_->tuner = enabled ? std::make_unique<impl::ProductTuner>(std::move(cache)) : nullptr;
}

template <class Space>
TuningReport Blas<Space>::tuning_report() const {
  return implementation_->tuner ? implementation_->tuner->report() : TuningReport{};
}

template <class Space>
TuningMachine Blas<Space>::tuning_machine() const {
  return impl::ProductTuner::machine();
}

template <class Space>
std::size_t blas_workspace_bytes() {
  return 2 * impl::workspace_bytes;  // of the main branch and of the one beside it
}

#define ENCORE_INSTANTIATE_PRODUCT(T, RESULT)                                           \
  template void Blas<Kokkos::Cuda>::multiply<T, RESULT>(                                \
      Stream<Kokkos::Cuda>&, const char*, Transpose, MatrixOperand<const T>, Transpose, \
      MatrixOperand<const T>, MatrixOperand<RESULT>, const MatrixProductOptions<RESULT>&);
template class Blas<Kokkos::Cuda>;
template std::size_t blas_workspace_bytes<Kokkos::Cuda>();
ENCORE_INSTANTIATE_PRODUCT(float, float)
ENCORE_INSTANTIATE_PRODUCT(bfloat16, bfloat16)
ENCORE_INSTANTIATE_PRODUCT(bfloat16, float)
#undef ENCORE_INSTANTIATE_PRODUCT

}  // namespace encore::backend
