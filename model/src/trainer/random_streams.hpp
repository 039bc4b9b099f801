// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/rank_layout.hpp>

#include <cstdint>
#include <string_view>

namespace encore::model {

/// What a rank adds to the seed of a random stream of the first rank, as Megatron-Core's model_parallel_cuda_manual_seed
/// does (megatron/core/tensor_parallel/random.py): `model-parallel` differs by tensor rank and stage, `expert-parallel` by
/// expert and tensor rank and stage. `default` is the same everywhere: what is drawn from it is numbered by layer and
/// microbatch among those of all ranks, so that every layout of ranks draws what one rank would.
inline std::uint64_t seed_of_rank(std::string_view stream, const ModelShard& shard) {
  const std::int64_t tensor = shard.place.tensor, stage = 100 * shard.place.stage;
  if (stream == "model-parallel") return static_cast<std::uint64_t>(tensor + stage);
  if (stream == "expert-parallel")
    return static_cast<std::uint64_t>(tensor + stage + 100 * shard.expert_rank());
  return 0;
}

}  // namespace encore::model
