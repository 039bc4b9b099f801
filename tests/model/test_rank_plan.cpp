// SPDX-License-Identifier: Apache-2.0
#include "rank_groups.hpp"
#include "tiny_models.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/rank_plan.hpp>

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace encore;
using namespace encore::tests;

/// Calls and bytes by kind, and of messages by the other rank: the order of a plan is that of its segments, the order of a run that of its branches.
std::string volume_of(const backend::TransportLog& log) {
  std::map<std::pair<backend::TransportOperation, int>, std::pair<std::size_t, std::size_t>> volume;
  for (const backend::TransportCall& call : log) {
    auto& [calls, bytes] = volume[{call.operation, call.peer}];
    ++calls;
    bytes += call.bytes;
  }
  std::string text;
  for (const auto& [key, sum] : volume)
    text += std::string(backend::name_of(key.first)) + " " + std::to_string(key.second) + ": " +
            std::to_string(sum.first) + " of " + std::to_string(sum.second) + " bytes; ";
  return text;
}

/// Puts a counter before each group that the step uses, under its place.
std::array<std::shared_ptr<backend::TransportLog>, model::rank_groups> count(model::RankGroups& groups) {
  std::array<std::shared_ptr<backend::TransportLog>, model::rank_groups> logs;
  const auto counted = [&](model::RankGroup group, std::shared_ptr<backend::Transport>& transport) {
    auto& log = logs[static_cast<std::size_t>(group)];
    log = std::make_shared<backend::TransportLog>();
    if (transport) transport = backend::counting_transport(transport, log);
  };
  using enum model::RankGroup;
  counted(world, groups.world);
  counted(tensor, groups.tensor);
  counted(data, groups.data);
  counted(expert, groups.expert);
  counted(expert_data, groups.expert_data);
  counted(pipeline, groups.pipeline);
  return logs;
}

struct Layout {
  std::vector<std::string> model;
  std::vector<std::string> settings;
};

std::vector<Layout> layouts() {
  const auto llama = tiny_model("llama");
  const auto experts = tiny_experts();
  return {{llama, {"parallel.data=2"}},
          {llama, {"parallel.data=4", "parallel.shard_optimizer=true"}},
          {llama, {"parallel.tensor=2"}},
          {llama, {"parallel.tensor=2", "parallel.sequence=true", "train.recompute=full"}},
          {experts, {"parallel.data=2", "parallel.expert=2"}},
          {experts, {"parallel.data=4", "parallel.expert=2", "parallel.expert_dispatch=all_gather"}},
          {llama, {"parallel.pipeline=2", "train.microbatches=4"}},
          {llama, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.data=2", "train.microbatches=2"}}};
}

}  // namespace

TEST_CASE(
    "a plan tells the calls and bytes that a step of each rank really has, and the memory that it takes") {
  for (const Layout& layout : layouts()) {
    CAPTURE(layout.settings.front());
    CAPTURE(layout.settings.back());
    auto settings = layout.settings;
    for (const char* setting : {"backend=serial", "graph.impl=none"}) settings.emplace_back(setting);
    const model::Configuration configuration = resolve(layout.model, settings);
    on_rank_layout(configuration.parallel, [&](const model::RankGroups& of_rank, std::int64_t rank) {
      model::RankGroups groups = of_rank;
      const auto logs = count(groups);
      const auto trainer = model::make_trainer(configuration, groups);
      for (const auto& log : logs) log->clear();
      const Batch batch = random_batch(configuration, 0);
      trainer->set_batch(batch.ids, batch.labels);
      trainer->step(configuration.train.lr);
      const model::RankPlan plan = model::plan_rank(configuration, rank);
      for (std::size_t group = 0; group < logs.size(); ++group) {
        CAPTURE(group);
        CHECK(volume_of(plan.operations[group]) == volume_of(*logs[group]));
      }
      REQUIRE(plan.step.outline.buffers().size() == trainer->outline().buffers().size());
      for (std::size_t i = 0; i < plan.step.outline.buffers().size(); ++i) {
        const graph::Buffer &planned = plan.step.outline.buffers()[i],
                            &made = trainer->outline().buffers()[i];
        CHECK(planned.name == made.name);
        CHECK(planned.bytes() == made.bytes());
      }
      CHECK(plan.step.memory.arena_bytes == trainer->memory_plan().arena_bytes);
    });
  }
}

TEST_CASE("a rank needs memory for its own part alone, and is refused a byte less than that takes") {
  std::vector<Layout> all = layouts();
  all.push_back({tiny_model("llama"),
                 {"parallel.data=2", "parallel.shard_optimizer=true", "train.precision=bf16",
                  "train.master_weights=true", "parallel.tensor=2"}});
  for (const Layout& layout : all) {
    CAPTURE(layout.settings.front());
    CAPTURE(layout.settings.back());
    // So large a vocabulary that parameters take nearly everything.
    auto settings = layout.settings;
    for (const char* setting : {"backend=serial", "graph.impl=none", "model.vocab=20000", "train.seq=8"})
      settings.emplace_back(setting);
    const model::Configuration configuration = resolve(layout.model, settings);
    on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t) {
      const model::ModelShard shard = model::shard_in(configuration.parallel, groups);
      const std::size_t needed = model::forecast_memory(configuration, shard).total();
      CHECK(model::least_memory(configuration, shard) < needed);
      auto limited = configuration;
      limited.graph.memory_limit = static_cast<std::int64_t>(needed);
      CHECK_NOTHROW(model::make_trainer(limited, groups));
      --limited.graph.memory_limit;
      CHECK_THROWS_AS(model::make_trainer(limited, groups), OutOfMemoryError);
    });
  }
}

TEST_CASE("a sharded optimizer is proposed where it makes a rank fit") {
  const model::Configuration configuration = resolve(
      tiny_model("llama"), {"backend=serial", "parallel.data=4", "model.vocab=20000", "graph.impl=none"});
  auto sharded = configuration;
  sharded.parallel.shard_optimizer = true;
  const model::ModelShard shard = model::shard_of(configuration.parallel, true, 1);
  auto limited = configuration;
  limited.graph.memory_limit = static_cast<std::int64_t>(
      model::forecast_memory(sharded, model::shard_of(sharded.parallel, true, 1)).total());
  try {
    model::require_memory(limited, shard, model::forecast_memory(configuration, shard));
    FAIL("it must be refused");
  } catch (const OutOfMemoryError& error) {
    CHECK(std::string(error.what()).find("parallel.shard_optimizer=true would fit") != std::string::npos);
  }
}

TEST_CASE("a plan tells the work that a profile of the step counts") {
  const model::Configuration configuration = resolve(tiny_model("llama"), {"backend=serial"});
  const auto trainer = model::make_trainer(configuration);
  const Batch batch = random_batch(configuration, 0);
  trainer->set_batch(batch.ids, batch.labels);
  const graph::StepProfile profile = trainer->profile(0.001, {.rates = graph::MachineRates{1e9, 1e9, 1e-6},
                                                              .samples = 1,
                                                              .sample_milliseconds = 0,
                                                              .most_repeats = 1,
                                                              .step_samples = 0});
  double flops = 0, bytes = 0, planned_flops = 0, planned_bytes = 0;
  for (const graph::SegmentProfile& segment : profile.segments) {
    flops += segment.flops;
    bytes += segment.bytes;
  }
  for (const model::KernelWork& kernel : model::plan_rank(configuration, 0).kernels) {
    planned_flops += kernel.flops;
    planned_bytes += kernel.bytes;
  }
  CHECK(planned_flops > 0);
  CHECK(planned_flops == doctest::Approx(flops));
  CHECK(planned_bytes == doctest::Approx(bytes));
}

TEST_CASE("ranks of a plan that is applied to more of them keep less each") {
  const auto bytes = [](const std::vector<std::string>& settings) {
    auto all = settings;
    all.emplace_back("backend=serial");
    const model::RankPlan plan = model::plan_rank(resolve(tiny_model("llama"), all), 0);
    return std::pair{plan.memory[model::MemoryUse::parameter],
                     plan.memory[model::MemoryUse::optimizer_state]};
  };
  const auto alone = bytes({});
  CHECK(bytes({"parallel.data=4"}) == alone);
  const auto sharded = bytes({"parallel.data=4", "parallel.shard_optimizer=true"});
  CHECK(sharded.first == alone.first);
  CHECK(sharded.second * 4 == alone.second);
  CHECK(bytes({"parallel.tensor=2"}).first < alone.first * 6 / 10);
  CHECK(bytes({"parallel.pipeline=2"}).first < alone.first);
}
