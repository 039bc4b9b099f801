// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/rank_layout.hpp>

#include <algorithm>
#include <array>

namespace encore::model {

std::string_view name_of(RankGroup group) noexcept {
  constexpr std::array<std::string_view, rank_groups> names{"world",  "tensor",      "data",
                                                            "expert", "expert_data", "pipeline"};
  return names[static_cast<std::size_t>(group)];
}

std::int64_t RankLayout::size(RankGroup group) const {
  switch (group) {
    case RankGroup::world: return ranks();
    case RankGroup::tensor: return tensor_;
    case RankGroup::data: return data_;
    case RankGroup::expert: return expert_;
    case RankGroup::expert_data: return data_ / expert_;
    case RankGroup::pipeline: return stages_;
  }
  return 0;
}

bool RankLayout::needs(RankGroup group) const {
  // Where all ranks have all experts, or everything, `data` does what is left.
  if (group == RankGroup::world) return tensor_ > 1 || expert_ > 1 || stages_ > 1;
  return size(group) > 1 && (group != RankGroup::expert_data || expert_ > 1);
}

std::int64_t RankLayout::rank_in(RankGroup group, const RankPlace& place) const {
  switch (group) {
    case RankGroup::world: return rank_at(place);
    case RankGroup::tensor: return place.tensor;
    case RankGroup::data: return place.data;
    case RankGroup::expert: return place.data % expert_;
    case RankGroup::expert_data: return place.data / expert_;
    case RankGroup::pipeline: return place.stage;
  }
  return 0;
}

std::int64_t RankLayout::number_of(RankGroup group, const RankPlace& place) const {
  // The lowest world rank of the group.
  RankPlace first = place;
  switch (group) {
    case RankGroup::world: first = {}; break;
    case RankGroup::tensor: first.tensor = 0; break;
    case RankGroup::data: first.data = 0; break;
    case RankGroup::expert: first.data -= place.data % expert_; break;
    case RankGroup::expert_data: first.data = place.data % expert_; break;
    case RankGroup::pipeline: first.stage = 0; break;
  }
  return rank_at(first);
}

Stretch share_of(std::int64_t size, std::int64_t ranks, std::int64_t rank) {
  constexpr std::int64_t multiple = 8;
  const std::int64_t even = (size + ranks - 1) / ranks;
  const std::int64_t share = size % ranks == 0 ? even : (even + multiple - 1) / multiple * multiple;
  return {std::min(size, rank * share), std::min(size, (rank + 1) * share)};
}

ModelShard shard_of(const ParallelConfiguration& parallel, bool stages_apart, std::int64_t rank) {
  const RankLayout layout(parallel, stages_apart);
  return {layout, layout.place_of(rank), stages_apart ? parallel.virtual_stages : std::int64_t{1},
          parallel.shard_optimizer ? parallel.data : std::int64_t{1}};
}

ModelShard first_shard(const ParallelConfiguration& parallel) { return shard_of(parallel, false, 0); }

ModelConfiguration local_model(const ModelConfiguration& model, const ModelShard& shard) {
  const std::int64_t tensor = shard.layout.tensor();
  const auto own = [&](std::int64_t size) { return share_of(size, tensor, shard.place.tensor).size(); };
  ModelConfiguration local = model;
  for (std::int64_t* size :
       {&local.heads, &local.kv_heads, &local.ffn, &local.vocab, &local.expert_ffn, &local.shared_ffn,
        &local.mamba_heads, &local.mamba_groups, &local.mamba_norm_groups})
    *size = own(*size);
  local.experts = share_of(model.experts, shard.layout.expert(), shard.expert_rank()).size();
  return local;
}

}  // namespace encore::model
