// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ranks.hpp"

#include <encore/model/files/rank_layout.hpp>
#include <encore/model/trainer.hpp>

#include <map>
#include <string>
#include <utility>

namespace encore::tests {

/// Runs `body(groups, rank)` on each rank of a layout, with a thread for each and stages apart. As on_ranks else.
template <class Body>
void on_rank_layout(const model::ParallelConfiguration& parallel, const Body& body) {
  using model::RankGroup;
  const model::RankLayout layout(parallel, true);
  std::map<std::pair<RankGroup, std::int64_t>, std::vector<std::shared_ptr<backend::Transport>>> transports;
  const auto end_of = [&](RankGroup group,
                          const model::RankPlace& place) -> std::shared_ptr<backend::Transport> {
    if (layout.size(group) == 1) return nullptr;
    auto& ends = transports[{group, layout.number_of(group, place)}];
    if (ends.empty())
      ends = backend::thread_transports(std::string(name_of(group)), static_cast<int>(layout.size(group)),
                                        std::chrono::minutes(2));
    return std::exchange(ends[static_cast<std::size_t>(layout.rank_in(group, place))], nullptr);
  };
  std::vector<model::RankGroups> groups;
  for (std::int64_t rank = 0; rank < layout.ranks(); ++rank) {
    const model::RankPlace place = layout.place_of(rank);
    groups.push_back({end_of(RankGroup::data, place), end_of(RankGroup::tensor, place),
                      end_of(RankGroup::expert, place), end_of(RankGroup::expert_data, place),
                      end_of(RankGroup::pipeline, place), end_of(RankGroup::world, place)});
  }
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(groups[rank], static_cast<std::int64_t>(rank));
      } catch (...) {
        errors[rank] = std::current_exception();
        for (int group = 0; group < model::rank_groups; ++group)
          if (const auto& transport = groups[rank].of(static_cast<RankGroup>(group))) transport->close();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace encore::tests
