// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ranks.hpp"

#include <encore/model/files/rank_layout.hpp>
#include <encore/model/trainer.hpp>

#include <utility>

namespace encore::tests {

/// Runs `body(groups, rank)` on each rank of a layout, with a thread for each and stages apart. As on_ranks else.
template <class Body>
void on_rank_layout(const model::ParallelConfiguration& parallel, const Body& body) {
  const model::RankLayout layout(parallel, true);
  on_ranks(static_cast<int>(layout.ranks()), [&](std::shared_ptr<backend::Transport> world) {
    const std::int64_t rank = world->rank();
    body(model::make_rank_groups(std::move(world), parallel), rank);
  });
}

}  // namespace encore::tests
