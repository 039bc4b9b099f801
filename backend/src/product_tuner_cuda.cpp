// SPDX-License-Identifier: Apache-2.0
#include "product_tuner_cuda.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/launch_cuda.hpp>
#include <encore/backend/memory.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>

namespace encore::backend::impl {

namespace {

std::size_t size_of(cudaDataType_t type) { return type == CUDA_R_16BF ? 2 : 4; }

/// Bytes of the matrices of a product, each a multiple of 256.
struct Sizes {
  std::size_t first, second, result;

  explicit Sizes(const MatmulKey& key) {
    const auto bytes = [](std::int64_t rows, std::int64_t stride, cudaDataType_t type) {
      return (static_cast<std::size_t>(rows * stride) * size_of(type) + 255) / 256 * 256;
    };
    first = bytes(key.first_transposed ? key.k : key.m, key.first_stride, key.operand_type);
    second = bytes(key.second_transposed ? key.n : key.k, key.second_stride, key.operand_type);
    result = bytes(key.m, key.result_stride, key.result_type);
  }
  std::size_t sum() const { return first + second + result; }
};

/// Between two marks in a stream.
class Stopwatch {
 public:
  Stopwatch() {
    check_cuda(cudaEventCreate(&begin_), "measuring a matrix product");
    check_cuda(cudaEventCreate(&end_), "measuring a matrix product");
  }
  ~Stopwatch() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  template <class Work>
  double microseconds(cudaStream_t stream, const Work& work) {
    check_cuda(cudaEventRecord(begin_, stream), "measuring a matrix product");
    work();
    check_cuda(cudaEventRecord(end_, stream), "measuring a matrix product");
    check_cuda(cudaEventSynchronize(end_), "measuring a matrix product");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "measuring a matrix product");
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// A captured row of launches.
class Graph {
 public:
  template <class Work>
  Graph(cudaStream_t stream, const Work& work) {
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "measuring a matrix product");
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream, &graph), "measuring a matrix product");
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check_cuda(made, "measuring a matrix product");
  }
  ~Graph() { (void)cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const {
    check_cuda(cudaGraphLaunch(executable_, stream), "measuring a matrix product");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

/// The operands that a product is measured with. In a step the first operand and the result of a small product are in
/// the second-level cache, and the second operand, weights or what the forward pass kept, comes from memory. So there
/// are as many copies of the second as the cache does not hold, to be taken in turn, and several of the others only
/// where a few of them exceed it.
class Operands {
 public:
  Operands(const MatmulKey& key, const MatmulCall& call, cudaStream_t stream, bool executes)
      : key_(key), call_(call), sizes_(key) {
    int device = 0, cache_bytes = 0;
    check_cuda(cudaGetDevice(&device), "measuring a matrix product");
    check_cuda(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device),
               "measuring a matrix product");
    const auto cache = static_cast<std::size_t>(cache_bytes);
    if (4 * sizes_.sum() > cache) copies_ = std::max<std::size_t>(1, 2 * cache / sizes_.sum());
    constexpr std::size_t most_copies = 64;
    copies_of_second_ = std::clamp<std::size_t>(2 * cache / sizes_.second, copies_, most_copies);
    own_ = !executes || copies_of_second_ > 1 || call.beta != 0;
    if (!own_) return;
    memory_ = Allocation<Kokkos::Cuda>(
        "operands of a matrix product being measured",
        copies_of_second_ * sizes_.second + copies_ * (sizes_.first + sizes_.result));
    fill(stream);
  }

  std::size_t copies() const { return copies_of_second_; }

  MatmulCall call(std::size_t repetition) const {
    MatmulCall call = call_;
    if (!own_) return call;
    std::byte* const others = memory_.data() + copies_of_second_ * sizes_.second +
                              repetition % copies_ * (sizes_.first + sizes_.result);
    call.second = memory_.data() + repetition % copies_of_second_ * sizes_.second;
    call.first = others;
    call.result = others + sizes_.first;
    if (key_.in_place) call.addend = call.result;
    return call;
  }

 private:
  /// Random numbers: what a GPU draws, and so its clock, depends on the data.
  void fill(cudaStream_t stream) {
    const std::size_t bytes = memory_.bytes();
    const std::size_t drawn = std::min<std::size_t>(bytes, std::size_t(1) << 19);
    std::vector<std::uint16_t> noise(drawn / 2);
    std::minstd_rand random(7);
    // The upper half of floats of either sign from 0.25 to 1, which is also the upper half of such bfloat16 pairs.
    for (std::uint16_t& half : noise) {
      const auto bits = static_cast<std::uint32_t>(random());
      half = static_cast<std::uint16_t>((bits & 0x8000U) | (0x3e80U + (bits >> 8) % 0x100U));
    }
    check_cuda(cudaMemcpyAsync(memory_.data(), noise.data(), drawn, cudaMemcpyHostToDevice, stream),
               "measuring a matrix product");
    for (std::size_t filled = drawn; filled < bytes; filled *= 2)
      check_cuda(cudaMemcpyAsync(memory_.data() + filled, memory_.data(), std::min(filled, bytes - filled),
                                 cudaMemcpyDeviceToDevice, stream),
                 "measuring a matrix product");
    check_cuda(cudaStreamSynchronize(stream), "measuring a matrix product");
  }

  MatmulKey key_;
  MatmulCall call_;
  Sizes sizes_;
  std::size_t copies_ = 1, copies_of_second_ = 1;
  bool own_ = false;
  Allocation<Kokkos::Cuda> memory_;
};

}  // namespace

ProductTuner::ProductTuner(std::shared_ptr<TuningCache> cache)
    : machine_(machine()), cache_(std::move(cache)) {}

TuningMachine ProductTuner::machine() {
  int device = 0;
  cudaDeviceProp properties;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
  return {properties.name, "cuBLASLt " + std::to_string(cublasLtGetVersion())};
}

bool ProductTuner::take(MatmulPlan& plan, const std::string& product) {
  if (!cache_) return false;
  const TunedProduct* const known = cache_->find(machine_, product);
  if (known == nullptr) return false;
  for (std::size_t candidate = 0; candidate < plan.candidates(); ++candidate) {
    if (plan.algorithm(candidate) != known->algorithm) continue;
    plan.choose(candidate);
    ++report_.taken;
    return true;
  }
  ++report_.unknown;
  return false;
}

void ProductTuner::choose(cublasLtHandle_t handle, MatmulPlan& plan, const MatmulKey& key,
                          const MatmulCall& call, std::byte* workspace, std::size_t workspace_bytes,
                          cudaStream_t stream, bool executes) {
  const std::string product = key.identity();
  if (take(plan, product)) return;
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<Operands> operands;
  try {
    operands = std::make_unique<Operands>(key, call, stream, executes);
  } catch (const OutOfMemoryError&) {
    ++report_.without_room;
    return;
  }
  Stopwatch stopwatch;
  const auto repeat = [&](std::size_t times) {
    for (std::size_t i = 0; i < times; ++i)
      plan.run(handle, operands->call(i), workspace, workspace_bytes, stream);
  };

  // A first look, which also loads the kernels: what is far behind is not looked at again.
  struct Contender {
    std::size_t candidate;
    double microseconds;
    std::unique_ptr<Graph> graph;
  };
  std::vector<Contender> contenders;
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t candidate = 0; candidate < plan.candidates(); ++candidate) {
    plan.choose(candidate);
    repeat(1);
    contenders.push_back({candidate, stopwatch.microseconds(stream, [&] { repeat(1); }), nullptr});
    best = std::min(best, contenders.back().microseconds);
  }
  // A single launch has some microseconds of its own.
  constexpr double launch_microseconds = 10;
  std::erase_if(contenders, [&](const Contender& contender) {
    return contender.candidate != 0 && contender.microseconds > 1.3 * best + launch_microseconds;
  });

  // Short ones as in a step, in a graph, where the host is not waited for.
  constexpr double long_microseconds = 150;
  const bool in_graph = best < long_microseconds;
  const std::size_t repetitions = in_graph ? std::max<std::size_t>(operands->copies(), 10) : 2;
  for (Contender& contender : contenders) {
    contender.microseconds = std::numeric_limits<double>::infinity();
    if (!in_graph) continue;
    plan.choose(contender.candidate);
    contender.graph = std::make_unique<Graph>(stream, [&] { repeat(repetitions); });
    contender.graph->launch(stream);
  }
  // In turn, so that a clock that changes meets all alike.
  constexpr int rounds = 3;
  for (int round = 0; round < rounds; ++round)
    for (Contender& contender : contenders) {
      plan.choose(contender.candidate);
      const double once = stopwatch.microseconds(stream, [&] {
        if (in_graph)
          contender.graph->launch(stream);
        else
          repeat(repetitions);
      });
      contender.microseconds = std::min(contender.microseconds, once / static_cast<double>(repetitions));
    }

  // One that is not clearly faster than the library's choice does not replace it.
  const Contender* chosen = &contenders.front();
  for (const Contender& contender : contenders)
    if (contender.microseconds < 0.98 * contenders.front().microseconds &&
        contender.microseconds < chosen->microseconds)
      chosen = &contender;
  plan.choose(chosen->candidate);
  plan.loaded = true;
  ++report_.measured;
  report_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (cache_) cache_->add(machine_, product, {plan.algorithm(chosen->candidate), chosen->microseconds});
}

}  // namespace encore::backend::impl
