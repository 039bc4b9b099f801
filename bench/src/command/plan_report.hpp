// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/memory_forecast.hpp>
#include <encore/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace encore::command {

/// What becomes of one module in a stretch of layers that are treated alike.
struct ModuleFate {
  std::string module;
  std::int64_t first_layer = -1;  ///< -1: belongs to no layer
  std::int64_t last_layer = -1;
  std::size_t segments = 0;  ///< in the whole stretch
  std::size_t captured = 0;  ///< of them
  std::size_t kernels = 0;
  std::string reason;  ///< why the others are not captured
  std::string change;  ///< the smallest change that captures them

  const char* state() const;  ///< captured, eager or partly
};

/// Modules in the order in which the step first runs them; those of no layer first. Neighbouring layers of which
/// each module has the same fate are put together.
std::vector<ModuleFate> module_fates(const model::StepPlan& plan, const graph::CapturePolicy& policy);

/// A step under one policy.
struct PolicyRow {
  std::string policy;   ///< `layer, train.recompute=full`
  bool chosen = false;  ///< the configuration's own
  std::string refused;  ///< why it cannot be; empty: it can
  std::size_t runs = 0;
  std::size_t captured_runs = 0;
  std::size_t segments = 0;
  std::size_t kernels = 0;
  std::size_t captured_kernels = 0;
  model::MemoryForecast memory;
};

/// The policies none, layer and full_iteration, and where nothing is recomputed also what recomputing whole layers
/// makes of each.
std::vector<PolicyRow> policy_rows(const model::Configuration& configuration);

}  // namespace encore::command
