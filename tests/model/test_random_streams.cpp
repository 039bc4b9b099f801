// SPDX-License-Identifier: Apache-2.0
#include "../../model/src/trainer/random_streams.hpp"
#include "rank_groups.hpp"
#include "tiny_models.hpp"

#include <doctest/doctest.h>

#include <mutex>

namespace {

using namespace encore;
using namespace encore::tests;

}  // namespace

TEST_CASE("random streams of ranks have the seeds of Megatron-Core") {
  // model_parallel_cuda_manual_seed(seed + 100 * stage): seed + 2718 + tensor rank for the model-parallel stream, seed +
  // 1024 + 100 * expert rank + tensor rank for the experts'; the first rank's part is the tracker's own.
  const model::ParallelConfiguration parallel{.data = 4, .tensor = 2, .expert = 2, .pipeline = 3};
  const model::RankLayout layout(parallel, true);
  for (std::int64_t rank = 0; rank < layout.ranks(); ++rank) {
    const model::ModelShard shard = model::shard_of(parallel, true, rank);
    const auto tensor = static_cast<std::uint64_t>(shard.place.tensor),
               stage = static_cast<std::uint64_t>(shard.place.stage),
               expert = static_cast<std::uint64_t>(shard.place.data % 2);
    CHECK(model::seed_of_rank("default", shard) == 0);
    CHECK(model::seed_of_rank("model-parallel", shard) == tensor + 100 * stage);
    CHECK(model::seed_of_rank("expert-parallel", shard) == tensor + 100 * expert + 100 * stage);
  }
}

TEST_CASE(
    "positions of random streams are the same on all ranks and are restored with each rank's own seeds") {
  const auto configuration = resolve(tiny_model("llama"), {"backend=serial", "parallel.tensor=2", "seed=42"});
  std::vector<std::vector<model::RandomPosition>> positions(2);
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    const Batch batch = random_batch(configuration, 0);
    trainer->set_batch(batch.ids, batch.labels);
    trainer->step(configuration.train.lr);
    auto& of_rank = positions[static_cast<std::size_t>(rank)];
    of_rank = trainer->random_positions();
    trainer->restore(7, of_rank);
    CHECK(trainer->random_positions() == of_rank);
  });
  CHECK(positions[0] == positions[1]);
  REQUIRE(positions[0].size() == 3);
  CHECK(positions[0][0] == model::RandomPosition{42, 1});
  CHECK(positions[0][1] == model::RandomPosition{42 + 2718, 1});
  CHECK(positions[0][2] == model::RandomPosition{42 + 1024, 1});
}
