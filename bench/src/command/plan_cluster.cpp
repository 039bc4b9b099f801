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
#include <set>
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

/// All calls of one kind that a rank makes to one group in a step.
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

struct StagePlan {
  model::RankPlan rank;
  std::vector<Traffic> traffic;

  /// On a GPU what the device copies from is host memory.
  double bytes() const { return static_cast<double>(rank.memory.total() - rank.memory[MemoryUse::staging]); }
  double bytes(MemoryUse use) const { return static_cast<double>(rank.memory[use]); }
  double seconds() const {
    double sum = 0;
    for (const Traffic& each : traffic) sum += each.seconds;
    return sum;
  }
};

/// Whether the ranks of a group that has this place are all in one node.
bool within_node(const model::RankLayout& layout, RankGroup group, const model::RankPlace& place,
                 std::int64_t gpus_per_node) {
  std::set<std::int64_t> nodes;
  for (std::int64_t rank = 0; rank < layout.ranks(); ++rank)
    if (layout.number_of(group, layout.place_of(rank)) == layout.number_of(group, place))
      nodes.insert(rank / gpus_per_node);
  return nodes.size() == 1;
}

std::vector<Traffic> traffic_of(const model::RankPlan& plan, const model::ClusterDescription& cluster) {
  std::map<std::pair<RankGroup, backend::TransportOperation>, Traffic> sums;
  const model::RankLayout& layout = plan.shard.layout;
  for (int index = 0; index < model::rank_groups; ++index) {
    const auto group = static_cast<RankGroup>(index);
    const bool inside = within_node(layout, group, plan.shard.place, cluster.gpus_per_node);
    const model::ClusterLink& link = inside ? cluster.within_node : cluster.between_nodes;
    for (const backend::TransportCall& call : plan.operations[static_cast<std::size_t>(index)]) {
      Traffic& sum = sums[{group, call.operation}];
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
        bytes_text(stage.bytes()), 100 * stage.bytes() / (cluster.gibibytes_per_gpu * (1 << 30)));
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
  return text;
}

Json plan_json(const model::Configuration& configuration, const model::ClusterDescription& cluster,
               const std::vector<StagePlan>& stages) {
  Json json{{"configuration", Json::parse(model::to_json(configuration))},
            {"parameters", model::parameter_count(configuration.model)},
            {"ranks", stages.front().rank.shard.layout.ranks()},
            {"gpus", cluster.gpus()},
            {"stages", Json::array()}};
  for (const StagePlan& stage : stages) {
    Json entry{{"stage", stage.rank.shard.place.stage}, {"memory", memory_json(stage.rank.memory)}};
    entry["bytes"] = stage.bytes();
    entry["fits"] = stage.bytes() <= cluster.gibibytes_per_gpu * (1 << 30);
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
    json["stages"].push_back(std::move(entry));
  }
  if (configuration.parallel.pipeline > 1) {
    const Bubble bubble = bubble_of(configuration);
    json["bubble"] = {{"simulated", bubble.simulated}, {"closed_form", bubble.closed_form}};
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
    StagePlan plan{model::plan_rank(configuration, layout.rank_at({0, 0, stage})), {}};
    plan.traffic = traffic_of(plan.rank, cluster);
    stages.push_back(std::move(plan));
  }
  const bool fits = std::ranges::all_of(
      stages, [&](const StagePlan& stage) { return stage.bytes() <= cluster.gibibytes_per_gpu * (1 << 30); });
  if (options.json) {
    print_json(plan_json(configuration, cluster, stages), console);
  } else {
    console.print(plan_text(configuration, cluster, stages));
    if (!fits)
      console.line(fmt::format(
          "a rank does not fit into the {:g} GiB of a GPU: deal the model out to more ranks, or make "
          "the microbatch smaller",
          cluster.gibibytes_per_gpu));
  }
  return fits ? 0 : exit_code(ErrorCode::out_of_memory);
}

}  // namespace encore::command
