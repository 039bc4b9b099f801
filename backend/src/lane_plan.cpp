// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/dependences.hpp>
#include <encore/backend/lane_plan.hpp>

#include <algorithm>

namespace encore::backend {

namespace {

/// Until a core sees what another one has written, and until a share of an operation has been taken: 100 to 300 ns
/// each on the servers it was measured on.
constexpr double handover_nanoseconds = 200;
constexpr double sharing_nanoseconds = 200;

class Planner {
 public:
  Planner(const Dependences& dependences, std::span<const OperationCost> costs, int lanes)
      : dependences_(dependences),
        costs_(costs),
        free_(static_cast<std::size_t>(lanes)),
        begin_(free_.size()),
        known_(free_.size(), std::vector<bool>(costs.size())),
        over_(costs.size()) {
    plan_.lanes.reserve(costs.size());
    plan_.waits_ends.reserve(costs.size());
    plan_.announced.resize(costs.size());
  }

  LanePlan plan(double share_from) {
    for (std::size_t operation = 0; operation < costs_.size(); ++operation) {
      find_begin_on_each_lane(operation);
      const OperationCost& cost = costs_[operation];
      if (free_.size() > 1 && cost.size > 1 && cost.nanoseconds >= share_from)
        share(operation);
      else
        give_to_one_lane(operation);
      add_waits(operation);
    }
    plan_.nanoseconds = *std::max_element(free_.begin(), free_.end());
    return std::move(plan_);
  }

 private:
  void find_begin_on_each_lane(std::size_t operation) {
    begin_ = free_;
    for (const std::uint32_t earlier : dependences_.predecessors(operation))
      for (std::size_t lane = 0; lane < free_.size(); ++lane) {
        const bool own = plan_.lanes[earlier] == static_cast<std::int32_t>(lane);
        begin_[lane] = std::max(begin_[lane], over_[earlier] + (own ? 0 : handover_nanoseconds));
      }
  }

  /// The lanes work until the sum of what they do, each from when it can begin, is the operation's cost.
  void share(std::size_t operation) {
    const OperationCost& cost = costs_[operation];
    std::vector<double> begins = begin_;
    std::sort(begins.begin(), begins.end());
    double end = 0, sum = 0;
    for (std::size_t helpers = 1; helpers <= begins.size(); ++helpers) {
      if (helpers > 1 && end <= begins[helpers - 1]) break;
      sum += begins[helpers - 1] + sharing_nanoseconds;
      end = (cost.nanoseconds + sum) / static_cast<double>(helpers);
    }
    end = std::max(end, begins.front() + cost.nanoseconds / static_cast<double>(cost.size));
    for (std::size_t lane = 0; lane < free_.size(); ++lane) free_[lane] = std::max(begin_[lane], end);
    over_[operation] = end;
    plan_.lanes.push_back(LanePlan::shared);
  }

  void give_to_one_lane(std::size_t operation) {
    const auto lane = std::min_element(begin_.begin(), begin_.end()) - begin_.begin();
    const double end = begin_[lane] + costs_[operation].nanoseconds;
    free_[lane] = end;
    over_[operation] = end;
    plan_.lanes.push_back(static_cast<std::int32_t>(lane));
  }

  /// A lane need not wait for what it did itself, nor for what it has waited for before, directly or through an
  /// operation that had waited for it.
  void add_waits(std::size_t operation) {
    const std::int32_t lane = plan_.lanes[operation];
    const auto predecessors = dependences_.predecessors(operation);
    for (auto earlier = predecessors.rbegin(); earlier != predecessors.rend(); ++earlier) {
      if (lane != LanePlan::shared) {
        if (is_known(static_cast<std::size_t>(lane), *earlier)) continue;
        learn(static_cast<std::size_t>(lane), *earlier);
      } else {
        bool all_know = true;
        for (std::size_t each = 0; each < known_.size(); ++each) {
          all_know = all_know && is_known(each, *earlier);
          learn(each, *earlier);
        }
        if (all_know) continue;
      }
      plan_.waits.push_back(*earlier);
      plan_.announced[*earlier] = true;
    }
    plan_.waits_ends.push_back(plan_.waits.size());
  }

  bool is_known(std::size_t lane, std::uint32_t operation) const {
    return known_[lane][operation] || plan_.lanes[operation] == static_cast<std::int32_t>(lane);
  }

  void learn(std::size_t lane, std::uint32_t operation) {
    known_[lane][operation] = true;
    for (const std::uint32_t earlier : dependences_.predecessors(operation)) known_[lane][earlier] = true;
  }

  const Dependences& dependences_;
  std::span<const OperationCost> costs_;
  std::vector<double> free_;              ///< when each lane is done with what it has been given
  std::vector<double> begin_;             ///< when each lane can begin with the operation looked at
  std::vector<std::vector<bool>> known_;  ///< by lane: operations that it has seen to be over
  std::vector<double> over_;
  LanePlan plan_;
};

}  // namespace

LanePlan plan_lanes(const Dependences& dependences, std::span<const OperationCost> costs, int lanes,
                    double share_from) {
  return Planner(dependences, costs, lanes).plan(share_from);
}

}  // namespace encore::backend
