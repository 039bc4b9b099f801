// SPDX-License-Identifier: Apache-2.0
//
// Times whole training steps of the presets and prints one JSON line per (workload, mode), with the fields of the
// PyTorch peer's lines, so that both programs' output of one run can be put into one file.
//
// setup_s goes from the configuration to the first timed step: the trainer, the eager steps, the capture and the first
// replays. The peer's begins after its model and optimizer were made, and its timed steps are in it. What starting the
// device took, once for the process, is setup_phases' `device`, and is not in setup_s.
#include <encore/backend/error.hpp>
#include <encore/backend/job.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/nccl_transport.hpp>
#include <encore/backend/runtime.hpp>
#include <encore/backend/thread_transport.hpp>
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

struct Options {
  std::string backend = "cuda";
  int iterations = 30;
  bool tune = false;
  std::string tuning_cache;
  std::vector<std::string> collectives;
  std::vector<std::string> settings;
};

/// Groups of this process alone: of NCCL on CUDA, of threads on hosts.
encore::model::RankGroups groups_of_one(const std::string& backend, const std::vector<std::string>& names) {
  using namespace encore::backend;
  const auto alone = [&](const char* name) -> std::shared_ptr<Transport> {
    if (std::find(names.begin(), names.end(), name) == names.end()) return nullptr;
    if (backend == "cuda") return nccl_transport(name, make_nccl_id(), 1, 0);
    return thread_transports(name, 1).front();
  };
  encore::model::RankGroups groups;
  groups.data = alone("data");
  groups.tensor = alone("tensor");
  groups.expert = alone("expert");
  groups.pipeline = alone("pipeline");
  return groups;
}

/// What this process shares with the others of its job.
encore::model::RankGroups groups_of(const encore::backend::Job& job, const Configuration& configuration,
                                    const Options& options) {
  if (!job.world) return groups_of_one(options.backend, options.collectives);
  return encore::model::make_rank_groups(job.world, configuration.parallel);
}

/// Tokens of this rank's microbatches, which depend on their numbers among those of all ranks alone.
std::vector<std::int32_t> random_tokens(const Configuration& configuration, std::int64_t rank) {
  const auto& train = configuration.train;
  const std::int64_t count = train.microbatch * train.seq,
                     data = encore::model::RankLayout(configuration.parallel, true).place_of(rank).data;
  std::uniform_int_distribution<std::int32_t> tokens(
      0, static_cast<std::int32_t>(configuration.model.vocab - 1));
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < train.microbatches; ++i) {
    std::mt19937 generator(static_cast<std::uint32_t>(data * train.microbatches + i));
    for (std::int64_t token = 0; token < count; ++token) ids.push_back(tokens(generator));
  }
  return ids;
}

/// The parts of setting up, each with its seconds, in their order.
class Phases {
 public:
  void end(const std::string& name) {
    const auto now = Clock::now();
    seconds_[name] = seconds_.value(name, 0.0) + std::chrono::duration<double>(now - begin_).count();
    begin_ = now;
  }
  double sum() const {
    double sum = 0;
    for (const auto& phase : seconds_) sum += phase.get<double>();
    return sum;
  }
  const nlohmann::ordered_json& seconds() const { return seconds_; }

 private:
  Clock::time_point begin_ = Clock::now();
  nlohmann::ordered_json seconds_ = nlohmann::ordered_json::object();
};

double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

nlohmann::ordered_json tuning_of(const encore::model::Trainer& trainer) {
  const encore::model::TuningSummary tuning = trainer.tuning();
  nlohmann::ordered_json line{{"measured", tuning.measured},
                              {"taken", tuning.taken},
                              {"other_entries", tuning.other_entries},
                              {"seconds", rounded(tuning.seconds, 3)}};
  if (!tuning.note.empty()) line["note"] = tuning.note;
  return line;
}

void run(const std::string& workload, const std::string& mode, const Options& options,
         const encore::backend::Job& job, double device_seconds) {
  Phases phases;
  encore::model::ConfigurationSources sources;
  sources.preset(workload).assignment("backend=" + options.backend);
  if (options.tune) sources.assignment("train.tune_products=on");
  if (!options.tuning_cache.empty()) sources.assignment("train.tuning_cache=" + options.tuning_cache);
  const std::string implementation = mode == "eager" ? "none" : mode == "layer" ? "layer" : "full_iteration";
  sources.assignment("graph.impl=" + implementation).assignment("graph.warmup_steps=3");
  if (mode != "eager")
    sources.assignment("graph.optimizer=" + std::string(mode == "graph" ? "joined" : "separate"));
  for (const std::string& setting : options.settings) sources.assignment(setting);
  const Configuration configuration = sources.resolve().configuration;
  const std::size_t free_before = free_bytes(configuration.backend);
  const auto trainer = encore::model::make_trainer(configuration, groups_of(job, configuration, options));
  phases.end("trainer");

  const auto& train = configuration.train;
  const auto count = static_cast<std::size_t>(train.microbatches * train.microbatch * train.seq);
  const std::vector<std::int32_t> ids = random_tokens(configuration, job.process.rank);
  std::vector<std::int32_t> labels(count);
  std::rotate_copy(ids.begin(), ids.begin() + 1, ids.end(), labels.begin());
  trainer->set_batch(ids, labels);

  double first_loss = 0, capture_seconds = 0;
  constexpr int warmup = 9;  // eager steps, the capture, and the first replays
  encore::model::StepResult result{};
  for (int i = 0; i < warmup; ++i) {
    result = trainer->step(train.lr);
    if (i == 0) first_loss = result.loss;
    capture_seconds += result.report.capture_seconds;
    using enum encore::graph::StepMode;
    phases.end(i == 0                          ? "first_step"
               : result.report.mode == eager   ? "warmup"
               : result.report.mode == capture ? "capture"
                                               : "replays");
  }
  std::vector<double> wall, device;
  std::size_t host_syncs = 0;
  for (int i = 0; i < options.iterations; ++i) {
    result = trainer->step(train.lr);
    wall.push_back(result.milliseconds);
    device.push_back(result.device_milliseconds);
    host_syncs += result.report.host_syncs + result.report.host_copies;
  }
  const double milliseconds = median(wall);
  const double peak =
      static_cast<double>(free_before - std::min(free_before, free_bytes(configuration.backend)));
  nlohmann::ordered_json seconds{{"device", rounded(device_seconds, 3)}};
  for (const auto& [name, phase] : phases.seconds().items()) seconds[name] = rounded(phase.get<double>(), 3);
  nlohmann::ordered_json line{
      {"peer", "encore"},
      {"workload", workload},
      {"mode", mode},
      {"precision", std::string(encore::model::name_of(train.precision))},
      {"backend", options.backend},
      {"collectives", options.collectives},
      {"ranks", job.process.size},
      {"settings", options.settings},
      {"ms", rounded(milliseconds, 4)},
      {"gpu_ms", rounded(median(device), 4)},
      {"tok_s", std::llround(static_cast<double>(count * configuration.parallel.data) / milliseconds * 1e3)},
      {"tflops", rounded(flops_of(configuration) * static_cast<double>(configuration.parallel.data) /
                             milliseconds / 1e9,
                         1)},
      {"capture_s",
       mode == "eager" ? nlohmann::ordered_json() : nlohmann::ordered_json(rounded(capture_seconds, 3))},
      {"setup_s", rounded(phases.sum(), 2)},
      {"setup_phases", seconds},
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
  if (options.tune) line["tuning"] = tuning_of(*trainer);
  if (job.world) line["transport"] = job.world->description();
  if (!trainer->refusal().empty()) line["refusal"] = trainer->refusal();
  if (job.process.rank > 0) return;
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> workloads{"tiny-launch", "gpt2-124m-b1", "gpt2-124m",
                                     "gpt-1b",      "moe-small",    "moe-qwen3"};
  std::vector<std::string> modes{"eager", "layer", "graph"};
  Options options;
  CLI::App app{"Times training steps of the presets; one JSON line per workload and mode"};
  app.add_option("--workloads", workloads, "Presets")->delimiter(',');
  app.add_option("--modes", modes, "eager, layer, graph")
      ->delimiter(',')
      ->check(CLI::IsMember({"eager", "layer", "graph"}));
  app.add_option("--backend", options.backend, "serial, openmp or cuda");
  app.add_option("--iters", options.iterations, "Timed steps")->check(CLI::Range(1, 100000));
  auto* tune = app.add_flag("--tune", options.tune, "Pick the algorithms of matrix products by measurement");
  app.add_option("--tuning-cache", options.tuning_cache, "File that keeps what --tune picks")->needs(tune);
  app.add_option("--collectives", options.collectives,
                 "With the collectives of data, tensor, expert or pipeline ranks, in groups of one")
      ->delimiter(',')
      ->check(CLI::IsMember({"data", "tensor", "expert", "pipeline"}));
  app.add_option("--set", options.settings, "Assignments to the preset, as parallel.data=2 in a job of two");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto start = Clock::now();
    const encore::backend::ProcessRank process = encore::backend::process_rank();
    const encore::backend::Runtime runtime(0, process);
    encore::backend::Job job{process, nullptr, nullptr};
    if (!process.alone())
      job = options.backend == "cuda" ? encore::backend::join_gpu_job(process)
                                      : encore::backend::join_host_job(process);
    const double device_seconds = seconds_since(start);
    for (const std::string& workload : workloads)
      for (const std::string& mode : modes) run(workload, mode, options, job, device_seconds);
  } catch (const encore::Error& error) {
    fmt::print(stderr, "encore_step_benchmark: {}\n", error.what());
    return error.exit_code();
  }
}
