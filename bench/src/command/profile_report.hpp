// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/step_profile.hpp>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"

namespace encore::command {

/// A segment's name without its numbers: `layer.3/attn/forward` and `microbatch.1/layer.3/attn/forward` become
/// `attn forward`, `optimizer/adamw.2` becomes `optimizer adamw`.
std::string kind_of(std::string_view name);

/// A line of the table: one segment, those of a kind in all layers and microbatches, or the launches of one label.
struct ProfileRow {
  std::string name;
  std::size_t count = 0;  ///< segments, or launches
  double milliseconds = 0;
  double floor_milliseconds = 0;
  double nodes = 0;
  double flops = 0;
  double bytes = 0;
  graph::Bound bound = graph::Bound::launches;
  std::string eager_because;  ///< of the first segment that was timed eagerly

  double gap() const { return milliseconds - floor_milliseconds; }
  double ratio() const { return floor_milliseconds > 0 ? milliseconds / floor_milliseconds : 0; }
};

/// The largest gap first. What a label took is an estimate: a segment's time is shared among its launches in
/// proportion to their floors.
std::vector<ProfileRow> profile_rows(const graph::StepProfile& profile, ProfileGrouping grouping);

/// `precision`: of the matrix product whose rate was measured.
std::string profile_text(const graph::StepProfile& profile, ProfileGrouping grouping,
                         std::string_view precision);
nlohmann::ordered_json profile_json(const graph::StepProfile& profile, ProfileGrouping grouping);

}  // namespace encore::command
