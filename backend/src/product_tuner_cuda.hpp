// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "blas_plan_cuda.hpp"

#include <encore/backend/blas.hpp>
#include <encore/backend/tuning_cache.hpp>

#include <memory>

namespace encore::backend::impl {

/// Picks the algorithms of products by measurement, or from a cache.
class ProductTuner {
 public:
  /// Candidates asked of the heuristic.
  static constexpr int candidates = 12;

  explicit ProductTuner(std::shared_ptr<TuningCache> cache);

  /// `executes`: the call is about to run, so that it may as well run several times.
  void choose(cublasLtHandle_t handle, MatmulPlan& plan, const MatmulKey& key, const MatmulCall& call,
              std::byte* workspace, std::size_t workspace_bytes, cudaStream_t stream, bool executes);

  const TuningReport& report() const { return report_; }
  static TuningMachine machine();

 private:
  bool take(MatmulPlan& plan, const std::string& product);

  TuningMachine machine_;
  std::shared_ptr<TuningCache> cache_;
  TuningReport report_;
};

}  // namespace encore::backend::impl
