// SPDX-License-Identifier: Apache-2.0
#include "rank_groups.hpp"
#include "tiny_models.hpp"
#include "whole_tensors.hpp"

#include <doctest/doctest.h>
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

using namespace encore;
using namespace encore::tests;

/// The largest allocation for initial values, by Kokkos' callbacks, which hold for all threads.
class LargestInitialAllocation {
 public:
  LargestInitialAllocation() {
    namespace Tools = Kokkos::Tools::Experimental;
    before_ = Tools::get_callbacks();
    largest_ = 0;
    Tools::set_allocate_data_callback(
        [](Kokkos_Profiling_SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
          const std::lock_guard lock(mutex_);
          if (std::string(label).find("initial") != std::string::npos) largest_ = std::max(largest_, bytes);
        });
  }
  ~LargestInitialAllocation() { Kokkos::Tools::Experimental::set_callbacks(before_); }
  LargestInitialAllocation(const LargestInitialAllocation&) = delete;
  LargestInitialAllocation& operator=(const LargestInitialAllocation&) = delete;

  static std::uint64_t bytes() { return largest_; }

 private:
  static inline std::mutex mutex_;
  static inline std::uint64_t largest_ = 0;
  Kokkos::Tools::Experimental::EventSet before_;
};

struct Initial {
  std::map<std::string, std::vector<float>> weights, master;

  friend bool operator==(const Initial&, const Initial&) = default;
};

Initial initial(const std::vector<std::string>& settings) {
  const model::Configuration configuration = resolve(
      settings, {"backend=serial", "graph.impl=none", "train.precision=bf16", "train.master_weights=true"});
  WholeTensors weights, master;
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t) {
    const auto trainer = model::make_trainer(configuration, groups);
    weights.add(*trainer, model::ParameterArray::weights);
    master.add(*trainer, model::ParameterArray::master);
  });
  return {weights.tensors(), master.tensors()};
}

}  // namespace

TEST_CASE("ranks begin with the weights of one rank, and make them in pieces of a few megabytes") {
  // A table of several pieces, of a vocabulary that no number of ranks divides.
  constexpr std::int64_t vocabulary = 120003, hidden = 40;
  const auto settings = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = tiny_model("llama");
    all.insert(all.end(),
               {"model.vocab=" + std::to_string(vocabulary), "model.hidden=" + std::to_string(hidden),
                "model.layers=2", "model.tie_embeddings=true", "train.seq=8"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Initial alone = initial(settings({}));
  for (const auto& more : std::vector<std::vector<std::string>>{
           {"parallel.tensor=2"},
           {"parallel.data=2", "parallel.shard_optimizer=true"},
           {"parallel.tensor=2", "parallel.data=2", "parallel.shard_optimizer=true"},
           {"parallel.pipeline=2", "parallel.data=2", "parallel.shard_optimizer=true"}}) {
    CAPTURE(more.front());
    CAPTURE(more.back());
    const LargestInitialAllocation meter;
    CHECK((initial(settings(more)) == alone));
    // 2^22 float32 numbers; or what no arena can hold, a rank's share of a table.
    const std::uint64_t piece = 1 << 24;
    const std::uint64_t share =
        vocabulary * hidden * sizeof(float) / (more.front() == "parallel.tensor=2" ? 2 : 1);
    CHECK(meter.bytes() <= std::max(piece, share) + 4096);
  }
}

TEST_CASE("experts and channels of several ranks begin as one rank's do") {
  for (const auto& model : {tiny_experts(), tiny_hybrid()}) {
    const Initial alone = initial(model);
    for (const auto& more : std::vector<std::vector<std::string>>{
             {"parallel.tensor=2"},
             {"parallel.data=2", "parallel.expert=2", "parallel.shard_optimizer=true"}}) {
      auto settings = model;
      settings.insert(settings.end(), more.begin(), more.end());
      CHECK((initial(settings) == alone));
    }
  }
}
