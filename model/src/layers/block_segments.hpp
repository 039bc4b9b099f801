// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "operations.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace encore::model {

/// Makes segments of what a block computes: a single one, unless ranks communicate in between.
template <class Space>
class BlockSegments {
 public:
  using Body = typename graph::Program<Space>::Body;

  /// `place`: name of the first segment that computes, and what all have in common. The others are called
  /// `<name>/<what they do>`. Call end() when all is there.
  BlockSegments(graph::Program<Space>& program, Segment place)
      : program_(&program), place_(std::move(place)) {}

  /// Adds to the segment under way, or begins one. What that segment has written before needs not be told apart from
  /// what others have: `reads` is all that the body reads.
  void compute(const std::string& what, const std::vector<BufferId>& reads,
               const std::vector<BufferId>& writes, Body body, const std::vector<BufferId>& lingers = {}) {
    if (!open_) {
      open_ = Open{place_, {}};
      if (std::exchange(has_computed_, true)) open_->segment.name += "/" + what;
    }
    Segment& segment = open_->segment;
    for (const BufferId id : reads)
      if (!contains(segment.writes, id)) add(segment.reads, id);
    for (const BufferId id : writes) add(segment.writes, id);
    for (const BufferId id : lingers) add(segment.lingers, id);
    open_->bodies.push_back(std::move(body));
  }

  /// Adds a segment in which ranks communicate.
  void communicate(const std::string& what, const std::vector<BufferId>& reads,
                   const std::vector<BufferId>& writes, Body body) {
    end();
    Segment segment = place_;
    segment.name += "/" + what;
    segment.module = Module::comm;
    segment.reads = reads;
    segment.writes = writes;
    program_->add_segment(std::move(segment), std::move(body));
  }

  /// Ends the segment under way.
  void end() {
    if (!open_) return;
    Body body = open_->bodies.size() == 1 ? std::move(open_->bodies.front())
                                          : [bodies = std::move(open_->bodies)](Execution<Space>& x) {
                                              for (const Body& each : bodies) each(x);
                                            };
    program_->add_segment(std::move(open_->segment), std::move(body));
    open_.reset();
  }

 private:
  struct Open {
    Segment segment;
    std::vector<Body> bodies;
  };

  static bool contains(const std::vector<BufferId>& list, BufferId id) {
    return std::ranges::find(list, id) != list.end();
  }
  static void add(std::vector<BufferId>& list, BufferId id) {
    if (!contains(list, id)) list.push_back(id);
  }
  graph::Program<Space>* program_;
  Segment place_;
  std::optional<Open> open_;
  bool has_computed_ = false;
};

}  // namespace encore::model
