// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/trainer.hpp>

#include <fmt/format.h>

namespace encore::model {

const std::shared_ptr<backend::Transport>& RankGroups::of(RankGroup group) const {
  switch (group) {
    case RankGroup::tensor: return tensor;
    case RankGroup::data: return data;
    case RankGroup::expert: return expert;
    case RankGroup::expert_data: return expert_data;
    case RankGroup::pipeline: return pipeline;
    case RankGroup::world: break;
  }
  return world;
}

RankGroups make_rank_groups(std::shared_ptr<backend::Transport> world,
                            const ParallelConfiguration& parallel) {
  constexpr bool stages_apart = true;
  const RankLayout layout(parallel, stages_apart);
  if (layout.ranks() != world->size())
    throw ConfigurationError(fmt::format(
        "parallel.tensor = {}, parallel.data = {} and parallel.pipeline = {} make {} ranks, but there "
        "are {}: start as many as the three multiply to",
        parallel.tensor, parallel.data, parallel.pipeline, layout.ranks(), world->size()));
  const RankPlace place = layout.place_of(world->rank());
  const auto group = [&](RankGroup which) -> std::shared_ptr<backend::Transport> {
    if (!layout.needs(which)) return nullptr;
    return world->split(std::string(name_of(which)), static_cast<int>(layout.number_of(which, place)),
                        static_cast<int>(layout.rank_in(which, place)));
  };
  // Every rank makes the same groups in the same order.
  RankGroups groups;
  groups.data = group(RankGroup::data);
  groups.tensor = group(RankGroup::tensor);
  groups.expert = group(RankGroup::expert);
  groups.expert_data = group(RankGroup::expert_data);
  groups.pipeline = group(RankGroup::pipeline);
  groups.world = std::move(world);
  return groups;
}

ModelShard shard_in(const ParallelConfiguration& parallel, const RankGroups& groups) {
  const auto rank_in = [](const std::shared_ptr<backend::Transport>& group) {
    return group ? static_cast<std::int64_t>(group->rank()) : 0;
  };
  const RankPlace place{rank_in(groups.tensor), rank_in(groups.data), rank_in(groups.pipeline)};
  const bool stages_apart = groups.pipeline != nullptr;
  return shard_of(parallel, stages_apart, RankLayout(parallel, stages_apart).rank_at(place));
}

}  // namespace encore::model
