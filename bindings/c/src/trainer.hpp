// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/c/trainer.h>
#include <encore/model/trainer.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime.hpp"

namespace encore::c {

/// A trainer with what its handle remembers.
class TrainerState : public Object {
 public:
  TrainerState(std::shared_ptr<RuntimeState> runtime, const model::Configuration& configuration);
  ~TrainerState() override { end(); }

  /// Calls `use(model::Trainer&)`, one thread at a time.
  template <class Use>
  decltype(auto) with_trainer(const Use& use) {
    const std::lock_guard lock(mutex_);
    if (trainer_ == nullptr)
      throw UsageError("'" + name() + "' has ended together with Kokkos: it can only be destroyed");
    return use(*trainer_);
  }

  /// A parameter by its own name, or that of a published file's tensor. Throws UsageError with the nearest name.
  const model::ParameterSlice& slice(const char* name) const;

  std::string eager_reason;              ///< of the last step
  std::int64_t evaluated_sequences = 0;  ///< by the last evaluation

 protected:
  void end() noexcept override { trainer_.reset(); }

 private:
  std::mutex mutex_;
  std::unique_ptr<model::Trainer> trainer_;
  std::map<std::string, model::ParameterSlice, std::less<>> slices_;
};

}  // namespace encore::c

struct encore_trainer {
  std::unique_ptr<encore::c::TrainerState> state;
};

namespace encore::c {

TrainerState& state_of(const encore_trainer* trainer);

}  // namespace encore::c
