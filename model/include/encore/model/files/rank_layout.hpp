// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace encore::model {

/// Which ranks do something together.
enum class RankGroup {
  world,        ///< all
  tensor,       ///< parts of the same layers, on the same tokens
  data,         ///< the same layers, on microbatches of their own
  expert,       ///< neighbours in `data` that have different experts
  expert_data,  ///< of `data` those that have the same experts
  pipeline      ///< different layers, on the same microbatches
};
inline constexpr int rank_groups = 6;
/// As communicators are called: `expert_data`.
std::string_view name_of(RankGroup group) noexcept;

/// Where a rank stands in each direction.
struct RankPlace {
  std::int64_t tensor = 0;
  std::int64_t data = 0;
  std::int64_t stage = 0;

  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// How the ranks of a job share a model. As in Megatron-Core, neighbours are tensor ranks, then data ranks, then stages:
/// rank = tensor + T * (data + D * stage). Experts are dealt out among E neighbours in the data direction.
class RankLayout {
 public:
  /// One rank.
  RankLayout() = default;
  /// The configuration's numbers must be checked. Unless they are apart, each rank computes all stages in turn.
  RankLayout(const ParallelConfiguration& parallel, bool stages_apart)
      : tensor_(parallel.tensor),
        data_(parallel.data),
        expert_(parallel.expert),
        stages_(stages_apart ? parallel.pipeline : 1) {}

  std::int64_t tensor() const { return tensor_; }
  std::int64_t data() const { return data_; }
  std::int64_t expert() const { return expert_; }
  std::int64_t stages() const { return stages_; }
  std::int64_t ranks() const { return tensor_ * data_ * stages_; }

  RankPlace place_of(std::int64_t rank) const {
    return {rank % tensor_, rank / tensor_ % data_, rank / (tensor_ * data_)};
  }
  std::int64_t rank_at(const RankPlace& place) const {
    return place.tensor + tensor_ * (place.data + data_ * place.stage);
  }
  std::int64_t size(RankGroup group) const;
  /// Whether training is impossible without the group.
  bool needs(RankGroup group) const;
  /// The rank's number in its group.
  std::int64_t rank_in(RankGroup group, const RankPlace& place) const;
  /// Differs between the groups of one kind: what Transport::split calls a color.
  std::int64_t number_of(RankGroup group, const RankPlace& place) const;

 private:
  std::int64_t tensor_ = 1, data_ = 1, expert_ = 1, stages_ = 1;
};

/// A stretch of something that is counted.
struct Stretch {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

/// A rank's share of `size` equal things: equal shares where that is possible, else multiples of 8 (a matrix whose rows
/// have such lengths is fast on GPUs) with the last ranks having less.
Stretch share_of(std::int64_t size, std::int64_t ranks, std::int64_t rank);

/// The part of a model that a rank has.
struct ModelShard {
  RankLayout layout = {};
  RankPlace place = {};
  std::int64_t virtual_stages = 1;
  /// Ranks among which each stretch of parameters that is updated at once is dealt out; 1: each rank updates all of its own.
  std::int64_t optimizer_ranks = 1;

  std::int64_t expert_rank() const { return layout.rank_in(RankGroup::expert, place); }
  /// Chunks of layers, dealt out to the stages in turn.
  std::int64_t chunks() const { return layout.stages() * virtual_stages; }
  bool has_layer(std::int64_t layer, std::int64_t layers) const {
    return layer / (layers / chunks()) % layout.stages() == place.stage;
  }
  /// Whether other ranks have parameters that this one has not.
  bool has_part_of_layers() const {
    return layout.tensor() > 1 || layout.expert() > 1 || layout.stages() > 1;
  }
  bool has_embedding() const { return place.stage == 0; }
  bool has_head() const { return place.stage == layout.stages() - 1; }
};

/// The part of a rank of the job.
ModelShard shard_of(const ParallelConfiguration& parallel, bool stages_apart, std::int64_t rank);
/// That of the first rank, which computes all stages in turn.
ModelShard first_shard(const ParallelConfiguration& parallel);

/// A model as one rank computes it: heads, widths, experts and vocabulary are those of its share, everything else is
/// the whole model's.
ModelConfiguration local_model(const ModelConfiguration& model, const ModelShard& shard);

}  // namespace encore::model
