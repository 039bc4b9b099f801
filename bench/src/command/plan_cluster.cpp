// SPDX-License-Identifier: Apache-2.0
#include "plan_cluster.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/cluster.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <encore/model/files/pipeline_schedule.hpp>
#include <encore/model/rank_plan.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "../device/session.hpp"
#include "json_output.hpp"
#include "numbers.hpp"

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;
using model::MemoryUse;
using model::RankGroup;

/// All calls of one kind that a rank makes to one group in a step, over one kind of links.
struct Traffic {
  RankGroup group;
  backend::TransportOperation operation;
  std::int64_t ranks = 0;
  bool within_node = true;
  std::int64_t calls = 0;
  double payload = 0;  ///< bytes
  double sent = 0;     ///< bytes over links
  double seconds = 0;
};

/// What a rank computes in a step, where every expert gets as many tokens as any other.
struct Work {
  double flops = 0;
  double bytes = 0;    ///< read and written
  double seconds = 0;  ///< of each kernel the longer of both, by the rates of a GPU
};

struct StagePlan {
  model::RankPlan rank;
  std::vector<Traffic> traffic;
  Work work = {};

  /// On a GPU what the device copies from is host memory.
  double bytes() const { return static_cast<double>(rank.memory.total() - rank.memory[MemoryUse::staging]); }
  double bytes(MemoryUse use) const { return static_cast<double>(rank.memory[use]); }
  double seconds() const {
    double sum = 0;
    for (const Traffic& each : traffic) sum += each.seconds;
    return sum;
  }
};

std::vector<Traffic> traffic_of(const model::RankPlan& plan, const model::ClusterDescription& cluster) {
  std::map<std::tuple<RankGroup, backend::TransportOperation, bool>, Traffic> sums;
  const model::RankLayout& layout = plan.shard.layout;
  for (int index = 0; index < model::rank_groups; ++index) {
    const auto group = static_cast<RankGroup>(index);
    const backend::TransportLog& calls = plan.operations[static_cast<std::size_t>(index)];
    if (calls.empty()) continue;
    const std::int64_t stage = plan.shard.place.stage;
    const bool group_inside = model::stays_in_node(layout, group, stage, cluster.gpus_per_node);
    std::map<int, bool> message_inside;
    for (const backend::TransportCall& call : calls) {
      bool inside = group_inside;
      if (call.peer >= 0 && group == RankGroup::pipeline) {
        auto [entry, is_new] = message_inside.try_emplace(call.peer);
        if (is_new)
          entry->second = model::messages_stay_in_node(layout, stage, call.peer, cluster.gpus_per_node);
        inside = entry->second;
      }
      const model::ClusterLink& link = inside ? cluster.within_node : cluster.between_nodes;
      Traffic& sum = sums[{group, call.operation, !inside}];
      sum.group = group;
      sum.operation = call.operation;
      sum.ranks = layout.size(group);
      sum.within_node = inside;
      ++sum.calls;
      sum.payload += static_cast<double>(call.bytes);
      sum.sent += model::bytes_sent(call, sum.ranks);
      sum.seconds += model::seconds_of(call, sum.ranks, link);
    }
  }
  std::vector<Traffic> result;
  for (const auto& [key, sum] : sums) result.push_back(sum);
  return result;
}

/// The configuration whose products of experts have no more rows than are used where all experts get equally many.
model::Configuration with_balanced_experts(model::Configuration configuration) {
  if (configuration.model.experts > 0 && configuration.train.expert_capacity == 0)
    configuration.train.expert_budget = 1 / static_cast<double>(configuration.parallel.expert);
  return configuration;
}

Work work_of(const model::Configuration& configuration, std::int64_t rank, const model::GpuRates& rates) {
  Work work;
  for (const model::KernelWork& kernel :
       model::plan_rank(with_balanced_experts(configuration), rank).kernels) {
    work.flops += kernel.flops;
    work.bytes += kernel.bytes;
    work.seconds += std::max(kernel.flops / (1e12 * rates.teraflops_per_second),
                             kernel.bytes / (1e9 * rates.memory_gigabytes_per_second));
  }
  return work;
}

/// How long a stage waits, as a share of the time in which it works.
struct Bubble {
  double simulated;
  double closed_form;  ///< (p - 1) / (m v)
};

Bubble bubble_of(const model::Configuration& configuration) {
  const model::ParallelConfiguration& parallel = configuration.parallel;
  const model::PipelineShape shape{parallel.pipeline, parallel.virtual_stages,
                                   configuration.train.microbatches};
  std::int64_t end = 0, work = 0;
  for (const model::TimedPass& pass : model::timetable(shape)) {
    end = std::max(end, pass.end);
    if (pass.stage == 0) work += pass.end - pass.start;
  }
  return {static_cast<double>(end) / static_cast<double>(work) - 1,
          static_cast<double>(parallel.pipeline - 1) /
              static_cast<double>(shape.microbatches * shape.virtual_stages)};
}

model::ClusterDescription read_cluster(const std::filesystem::path& path) {
  constexpr std::size_t most_bytes = std::size_t{1} << 20;
  return model::parse_cluster(model::read_text_file(path, most_bytes), path.string());
}

double gpu_bytes(const model::ClusterDescription& cluster) { return cluster.gibibytes_per_gpu * (1 << 30); }

bool fits(const std::vector<StagePlan>& stages, const model::ClusterDescription& cluster) {
  return std::ranges::all_of(stages,
                             [&](const StagePlan& stage) { return stage.bytes() <= gpu_bytes(cluster); });
}

std::string layers_text(const model::RankPlan& plan, std::int64_t layers) {
  std::string text;
  for (std::int64_t layer = 0, first = -1; layer <= layers; ++layer) {
    const bool here = layer < layers && plan.shard.has_layer(layer, layers);
    if (here && first < 0) first = layer;
    if (here || first < 0) continue;
    text += fmt::format("{}{}-{}", text.empty() ? "" : ",", first, layer - 1);
    first = -1;
  }
  return text;
}

/// An estimate by the slowest stage: its work and waiting, beside its communication or before it.
struct StepTime {
  double overlapped = 0;
  double apart = 0;
};

StepTime step_time(const model::Configuration& configuration, const std::vector<StagePlan>& stages) {
  StepTime time;
  for (const StagePlan& stage : stages) {
    const double busy = stage.work.seconds * (1 + bubble_of(configuration).simulated);
    time.overlapped = std::max({time.overlapped, busy, stage.seconds()});
    time.apart = std::max(time.apart, busy + stage.seconds());
  }
  return time;
}

std::string work_text(const model::Configuration& configuration, const std::vector<StagePlan>& stages) {
  std::string text = fmt::format("\n{:>5} {:>10} {:>10} {:>10}\n", "stage", "TFLOP", "TB moved", "ms");
  for (const StagePlan& stage : stages)
    text += fmt::format("{:>5} {:>10.1f} {:>10.2f} {:>11.1f}\n", stage.rank.shard.place.stage,
                        stage.work.flops / 1e12, stage.work.bytes / 1e12, 1e3 * stage.work.seconds);
  const StepTime time = step_time(configuration, stages);
  return text +
         fmt::format("estimated step: {:.0f} ms with all communication overlapped, {:.0f} ms with none\n",
                     1e3 * time.overlapped, 1e3 * time.apart);
}

std::string plan_text(const model::Configuration& configuration, const model::ClusterDescription& cluster,
                      const std::vector<StagePlan>& stages) {
  const model::ParallelConfiguration& parallel = configuration.parallel;
  std::string text = fmt::format(
      "{} model of {} parameters on {} of {} GPUs ({} a node): {} tensor x {} data ({} share the experts) x "
      "{} "
      "stages\n\n",
      configuration.model.family, count_text(model::parameter_count(configuration.model)),
      stages.front().rank.shard.layout.ranks(), cluster.gpus(), cluster.gpus_per_node, parallel.tensor,
      parallel.data, parallel.expert, parallel.pipeline);
  text += fmt::format("{:>5} {:<16} {:>10} {:>10} {:>10} {:>11} {:>10} {:>10} {:>8}\n", "stage", "layers",
                      "weights", "gradients", "optimizer", "activations", "other", "a rank", "of a GPU");
  for (const StagePlan& stage : stages) {
    const double named = stage.bytes(MemoryUse::parameter) + stage.bytes(MemoryUse::gradient) +
                         stage.bytes(MemoryUse::optimizer_state) + stage.bytes(MemoryUse::arena);
    text += fmt::format(
        "{:>5} {:<16} {:>10} {:>10} {:>10} {:>11} {:>10} {:>10} {:>6.1f} %\n", stage.rank.shard.place.stage,
        layers_text(stage.rank, configuration.model.layers), bytes_text(stage.bytes(MemoryUse::parameter)),
        bytes_text(stage.bytes(MemoryUse::gradient)), bytes_text(stage.bytes(MemoryUse::optimizer_state)),
        bytes_text(stage.bytes(MemoryUse::arena)), bytes_text(stage.bytes() - named),
        bytes_text(stage.bytes()), 100 * stage.bytes() / gpu_bytes(cluster));
  }
  const auto busiest = std::ranges::max_element(
      stages, [](const StagePlan& left, const StagePlan& right) { return left.seconds() < right.seconds(); });
  text += fmt::format(
      "\nwhat a rank of stage {} tells others in a step\n{:<12} {:>6} {:<13} {:<15} {:>6} {:>11} "
      "{:>11} {:>10}\n",
      busiest->rank.shard.place.stage, "group", "ranks", "links", "operation", "calls", "payload", "sent",
      "ms");
  for (const Traffic& each : busiest->traffic)
    text +=
        fmt::format("{:<12} {:>6} {:<13} {:<15} {:>6} {:>11} {:>11} {:>10.3f}\n", name_of(each.group),
                    each.ranks, each.within_node ? "within a node" : "between nodes", name_of(each.operation),
                    each.calls, bytes_text(each.payload), bytes_text(each.sent), 1e3 * each.seconds);
  text += fmt::format("{:<12} {:>83.3f}\n", "sum", 1e3 * busiest->seconds());
  if (parallel.pipeline > 1) {
    const Bubble bubble = bubble_of(configuration);
    text += fmt::format(
        "\nstages wait {:.1f} % of the time in which they work ((p - 1) / (m v) = {:.1f} %): {} "
        "stages of {} chunks, {} microbatches\n",
        100 * bubble.simulated, 100 * bubble.closed_form, parallel.pipeline, parallel.virtual_stages,
        configuration.train.microbatches);
  }
  if (cluster.rates) text += work_text(configuration, stages);
  return text;
}

Json plan_json(const model::Configuration& configuration, const model::ClusterDescription& cluster,
               const std::vector<StagePlan>& stages) {
  Json json{{"configuration", Json::parse(model::to_json(configuration))},
            {"parameters", model::parameter_count(configuration.model)},
            {"ranks", stages.front().rank.shard.layout.ranks()},
            {"gpus", cluster.gpus()},
            {"gpus_per_node", cluster.gpus_per_node},
            {"bytes_per_gpu", gpu_bytes(cluster)},
            {"fits", fits(stages, cluster)},
            {"stages", Json::array()}};
  for (const StagePlan& stage : stages) {
    Json entry{{"stage", stage.rank.shard.place.stage}, {"layers", Json::array()}};
    for (std::int64_t layer = 0; layer < configuration.model.layers; ++layer)
      if (stage.rank.shard.has_layer(layer, configuration.model.layers)) entry["layers"].push_back(layer);
    entry["memory"] = memory_json(stage.rank.memory);
    entry["bytes"] = stage.bytes();
    entry["fits"] = stage.bytes() <= gpu_bytes(cluster);
    entry["traffic"] = Json::array();
    for (const Traffic& each : stage.traffic)
      entry["traffic"].push_back({{"group", name_of(each.group)},
                                  {"ranks", each.ranks},
                                  {"within_node", each.within_node},
                                  {"operation", name_of(each.operation)},
                                  {"calls", each.calls},
                                  {"payload_bytes", each.payload},
                                  {"sent_bytes", each.sent},
                                  {"ms", 1e3 * each.seconds}});
    if (cluster.rates)
      entry["work"] = {
          {"flops", stage.work.flops}, {"bytes", stage.work.bytes}, {"ms", 1e3 * stage.work.seconds}};
    json["stages"].push_back(std::move(entry));
  }
  if (configuration.parallel.pipeline > 1) {
    const Bubble bubble = bubble_of(configuration);
    json["bubble"] = {{"simulated", bubble.simulated}, {"closed_form", bubble.closed_form}};
  }
  if (cluster.rates) {
    const StepTime time = step_time(configuration, stages);
    json["step"] = {{"overlapped_ms", 1e3 * time.overlapped}, {"apart_ms", 1e3 * time.apart}};
  }
  return json;
}

}  // namespace

int print_cluster_plan(const PlanOptions& options, const model::Configuration& configuration,
                       Console& console) {
  const model::ClusterDescription cluster = read_cluster(*options.cluster);
  const model::RankLayout layout(configuration.parallel, true);
  if (layout.ranks() > cluster.gpus())
    throw ConfigurationError(fmt::format("parallel.* make {} ranks and '{}' has {} GPUs: lower one of them",
                                         layout.ranks(), options.cluster->string(), cluster.gpus()));
  const DeviceSession session(options.threads);
  std::vector<StagePlan> stages;
  for (std::int64_t stage = 0; stage < layout.stages(); ++stage) {
    const std::int64_t rank = layout.rank_at({0, 0, stage});
    StagePlan plan{model::plan_rank(configuration, rank), {}};
    plan.traffic = traffic_of(plan.rank, cluster);
    if (cluster.rates) plan.work = work_of(configuration, rank, *cluster.rates);
    stages.push_back(std::move(plan));
  }
  const bool all_fit = fits(stages, cluster);
  if (options.json) {
    print_json(plan_json(configuration, cluster, stages), console);
  } else {
    console.print(plan_text(configuration, cluster, stages));
    if (!all_fit)
      console.line(fmt::format(
          "a rank does not fit into the {:g} GiB of a GPU: deal the model out to more ranks, or make "
          "the microbatch smaller",
          cluster.gibibytes_per_gpu));
  }
  return all_fit ? 0 : exit_code(ErrorCode::out_of_memory);
}

}  // namespace encore::command
