// SPDX-License-Identifier: Apache-2.0
//
// Times whole training steps of the presets and prints one JSON line per (workload, mode), with the fields of the
// PyTorch peer's lines, so that both programs' output of one run can be put into one file.
#include <encore/backend/error.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/runtime.hpp>
#include <encore/backend/version.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/trainer.hpp>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace {

using encore::model::Configuration;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::size_t free_bytes(encore::model::BackendKind backend) {
#if defined(KOKKOS_ENABLE_CUDA)
  if (backend == encore::model::BackendKind::cuda) return encore::backend::available_memory<Kokkos::Cuda>();
#endif
  (void)backend;
  return encore::backend::available_memory<Kokkos::DefaultHostExecutionSpace>();
}

/// Multiplications of a token in the matrices of a block, and in its attention or scan.
double multiplications(const encore::model::ModelConfiguration& model, encore::model::Block block,
                       double seq) {
  using enum encore::model::Block;
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double hidden = real(model.hidden);
  const double projections = model.activation == encore::model::Activation::swiglu ||
                                     model.activation == encore::model::Activation::swiglu_clamped
                                 ? 3
                                 : 2;
  switch (block) {
    case attention:
    case windowed_attention: {
      const double width = real(model.heads * model.head_dim), keys = real(model.kv_heads * model.head_dim);
      const double seen =
          block == attention ? seq : std::min(seq, 2 * static_cast<double>(model.sliding_window));
      return hidden * (2 * width + 2 * keys) + seen * width;
    }
    case mlp: return projections * hidden * real(model.ffn);
    case experts: return projections * hidden * real(model.expert_ffn * model.topk + model.shared_ffn);
    case mamba: {
      const double inner = real(model.mamba_heads * model.mamba_head_dim);
      const double shared = 2 * real(model.mamba_groups * model.mamba_state);
      const double chunk = real(model.mamba_chunk), state = real(model.mamba_state);
      return hidden * (3 * inner + shared + real(model.mamba_heads)) +
             real(model.mamba_heads) * chunk / 2 * (state + real(model.mamba_head_dim)) + 2 * inner * state;
    }
  }
  return 0;
}

/// Floating-point operations of forward and backward, counted as the PyTorch peer does.
double flops_of(const Configuration& configuration) {
  const auto& train = configuration.train;
  double sum =
      static_cast<double>(configuration.model.vocab) * static_cast<double>(configuration.model.hidden);
  for (const auto& layer : encore::model::blocks_of_layers(configuration.model))
    for (const auto block : layer)
      sum += multiplications(configuration.model, block, static_cast<double>(train.seq));
  return 6 * static_cast<double>(train.microbatches * train.microbatch * train.seq) * sum;
}

void run(const std::string& workload, const std::string& mode, const std::string& backend, int iterations) {
  const auto setup_start = Clock::now();
  encore::model::ConfigurationSources sources;
  sources.preset(workload).assignment("backend=" + backend);
  const std::string implementation = mode == "eager" ? "none" : mode == "layer" ? "layer" : "full_iteration";
  sources.assignment("graph.impl=" + implementation).assignment("graph.warmup_steps=3");
  if (mode != "eager")
    sources.assignment("graph.optimizer=" + std::string(mode == "graph" ? "joined" : "separate"));
  const Configuration configuration = sources.resolve().configuration;
  const std::size_t free_before = free_bytes(configuration.backend);
  const auto trainer = encore::model::make_trainer(configuration);

  const auto& train = configuration.train;
  const auto count = static_cast<std::size_t>(train.microbatches * train.microbatch * train.seq);
  std::mt19937 generator(0);
  std::uniform_int_distribution<std::int32_t> tokens(
      0, static_cast<std::int32_t>(configuration.model.vocab - 1));
  std::vector<std::int32_t> ids(count), labels(count);
  std::generate(ids.begin(), ids.end(), [&] { return tokens(generator); });
  std::rotate_copy(ids.begin(), ids.begin() + 1, ids.end(), labels.begin());
  trainer->set_batch(ids, labels);

  double first_loss = 0, capture_seconds = 0;
  constexpr int warmup = 9;  // eager steps, the capture, and the first replays
  encore::model::StepResult result{};
  for (int i = 0; i < warmup; ++i) {
    result = trainer->step(train.lr);
    if (i == 0) first_loss = result.loss;
    capture_seconds += result.report.capture_seconds;
  }
  const double setup_seconds = seconds_since(setup_start);
  std::vector<double> wall, device;
  std::size_t host_syncs = 0;
  for (int i = 0; i < iterations; ++i) {
    result = trainer->step(train.lr);
    wall.push_back(result.milliseconds);
    device.push_back(result.device_milliseconds);
    host_syncs += result.report.host_syncs + result.report.host_copies;
  }
  const double milliseconds = median(wall);
  const double peak =
      static_cast<double>(free_before - std::min(free_before, free_bytes(configuration.backend)));
  const auto rounded = [](double value, int digits) {
    const double scale = std::pow(10.0, digits);
    return std::round(value * scale) / scale;
  };
  nlohmann::ordered_json line{
      {"peer", "encore"},
      {"workload", workload},
      {"mode", mode},
      {"precision", std::string(encore::model::name_of(train.precision))},
      {"backend", backend},
      {"ms", rounded(milliseconds, 4)},
      {"gpu_ms", rounded(median(device), 4)},
      {"tok_s", std::llround(static_cast<double>(count) / milliseconds * 1e3)},
      {"tflops", rounded(flops_of(configuration) / milliseconds / 1e9, 1)},
      {"capture_s",
       mode == "eager" ? nlohmann::ordered_json() : nlohmann::ordered_json(rounded(capture_seconds, 3))},
      {"setup_s", rounded(setup_seconds, 1)},
      {"peak_gib", rounded(peak / (1 << 30), 2)},
      {"loss0", rounded(first_loss, 4)},
      {"params_m", rounded(static_cast<double>(trainer->layout().parameter_count()) / 1e6, 1)},
      {"graph_nodes", result.report.graph_nodes},
      {"eager_launches", result.report.eager_launches},
      {"host_syncs", host_syncs},
      {"fallbacks", result.report.fallbacks},
      {"version", ENCORE_VERSION_STRING},
      {"device", trainer->device_description()},
      {"commit", encore::backend::git_revision()}};
  if (!trainer->refusal().empty()) line["refusal"] = trainer->refusal();
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> workloads{"tiny-launch", "gpt2-124m-b1", "gpt2-124m",
                                     "gpt-1b",      "moe-small",    "moe-qwen3"};
  std::vector<std::string> modes{"eager", "layer", "graph"};
  std::string backend = "cuda";
  int iterations = 30;
  CLI::App app{"Times training steps of the presets; one JSON line per workload and mode"};
  app.add_option("--workloads", workloads, "Presets")->delimiter(',');
  app.add_option("--modes", modes, "eager, layer, graph")
      ->delimiter(',')
      ->check(CLI::IsMember({"eager", "layer", "graph"}));
  app.add_option("--backend", backend, "serial, openmp or cuda");
  app.add_option("--iters", iterations, "Timed steps")->check(CLI::Range(1, 100000));
  CLI11_PARSE(app, argc, argv);
  try {
    const encore::backend::Runtime runtime;
    for (const std::string& workload : workloads)
      for (const std::string& mode : modes) run(workload, mode, backend, iterations);
  } catch (const encore::Error& error) {
    fmt::print(stderr, "encore_step_benchmark: {}\n", error.what());
    return error.exit_code();
  }
}
