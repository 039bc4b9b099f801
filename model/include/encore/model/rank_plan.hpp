// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/planned_transport.hpp>
#include <encore/model/files/rank_layout.hpp>
#include <encore/model/memory_forecast.hpp>
#include <encore/model/step_plan.hpp>

#include <array>
#include <cstdint>
#include <vector>

namespace encore::model {

/// What a kernel declares that it does.
struct KernelWork {
  double flops = 0;  ///< of matrix products and attention; of experts with all rows there is room for
  double bytes = 0;  ///< read and written
};

/// A training step of one rank of a job, known without running it.
struct RankPlan {
  ModelShard shard;
  StepPlan step;
  MemoryForecast memory;  ///< without what recordings take
  /// What a step asks of each group, by RankGroup, in order.
  std::array<backend::TransportLog, rank_groups> operations;
  std::vector<KernelWork> kernels;  ///< in launch order, without what ranks tell each other
};

/// Plans the step of a rank of the job that parallel.* describes, with stages on ranks of their own: its program is built and
/// listed, and nothing runs. Throws ConfigurationError, and DeviceError when this build lacks the backend. Kokkos must be
/// initialised.
RankPlan plan_rank(const Configuration& configuration, std::int64_t rank);

}  // namespace encore::model
