// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/memory.hpp>
#include <encore/graph/contract_rules.hpp>
#include <encore/model/files/parameter_layout.hpp>
#include <encore/model/memory_forecast.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "../layers/update_parts.hpp"

namespace encore::model {

namespace {

std::size_t free_memory(BackendKind backend) {
  switch (backend) {
    case BackendKind::serial: ENCORE_IF_SERIAL(return backend::available_memory<Kokkos::Serial>();) break;
    case BackendKind::openmp: ENCORE_IF_OPENMP(return backend::available_memory<Kokkos::OpenMP>();) break;
    case BackendKind::cuda: ENCORE_IF_CUDA(return backend::available_memory<Kokkos::Cuda>();) break;
  }
  return std::numeric_limits<std::size_t>::max();
}

/// The tightest limit, and its words in a sentence.
struct Limit {
  std::size_t bytes;
  std::string words;
  std::string remedy;
};

std::string text_of(std::size_t bytes) {
  constexpr double mebibyte = 1024.0 * 1024.0;
  const double mebibytes = static_cast<double>(bytes) / mebibyte;
  if (mebibytes < 0.1) return fmt::format("{:.1f} KiB", mebibytes * 1024);
  return mebibytes < 1024 ? fmt::format("{:.2f} MiB", mebibytes)
                          : fmt::format("{:.2f} GiB", mebibytes / 1024);
}

Limit limit_of(const Configuration& configuration) {
  const std::size_t available = free_memory(configuration.backend);
  const auto allowed = static_cast<std::size_t>(configuration.graph.memory_limit);
  if (allowed > 0 && allowed <= available)
    return {allowed, fmt::format("graph.memory_limit allows {}", text_of(allowed)), "raise the limit"};
  return {available,
          fmt::format("{} of {} memory are free", text_of(available), name_of(configuration.backend)),
          "use another device"};
}

bool is_valid(const Configuration& configuration) {
  try {
    check(configuration);
    return true;
  } catch (const ConfigurationError&) {
    return false;
  }
}

/// What the rank has under another policy of its job.
ModelShard same_rank(const Configuration& configuration, const ModelShard& shard) {
  return shard_of(configuration.parallel, shard.layout.stages() > 1, shard.layout.rank_at(shard.place));
}

[[noreturn]] void refuse(const std::string& sentence) {
  throw OutOfMemoryError(fmt::format("{}: {}", graph::rule_memory.id, sentence));
}

/// Adds a change to a list and, where it is allowed, to the combination of all.
class Changes {
 public:
  explicit Changes(const Configuration& configuration) : original_(configuration), all_{"", configuration} {}

  template <class Change>
  void add(const std::string& text, const Change& change) {
    SmallerPolicy policy{text, original_};
    change(policy.configuration);
    if (policy.configuration == original_ || !is_valid(policy.configuration)) return;
    policies_.push_back(std::move(policy));
  }

  template <class Change>
  void combine(const std::string& text, const Change& change) {
    Configuration next = all_.configuration;
    change(next);
    if (next == all_.configuration || !is_valid(next)) return;
    all_.configuration = std::move(next);
    all_.change += (all_.change.empty() ? "" : " ") + text;
    ++combined_;
  }

  std::vector<SmallerPolicy> take() && {
    if (combined_ > 1) policies_.push_back(std::move(all_));
    return std::move(policies_);
  }

 private:
  const Configuration& original_;
  SmallerPolicy all_;
  int combined_ = 0;
  std::vector<SmallerPolicy> policies_;
};

}  // namespace

std::size_t least_memory(const Configuration& configuration, const ModelShard& shard) {
  const TrainConfiguration& train = configuration.train;
  const auto size = [](Precision precision) -> std::size_t { return precision == Precision::bf16 ? 2 : 4; };
  const ParameterLayout layout(configuration.model, train.decay_all, shard);
  const std::int64_t updated = optimizer_elements(layout, configuration.model.layers);
  return (size(train.precision) + size(train.gradient_type)) * static_cast<std::size_t>(layout.elements()) +
         (2 * size(train.optimizer_state) + (train.master_weights ? 4 : 0)) *
             static_cast<std::size_t>(updated);
}

Configuration with_policy(const Configuration& configuration, GraphImplementation implementation) {
  Configuration changed = configuration;
  if (changed.graph.impl == implementation) return changed;
  changed.graph.impl = implementation;
  changed.graph.modules.clear();
  switch (implementation) {
    case GraphImplementation::none: changed.graph.optimizer = OptimizerPlacement::eager; break;
    case GraphImplementation::layer: changed.graph.optimizer = OptimizerPlacement::separate; break;
    case GraphImplementation::full_iteration: changed.graph.optimizer = OptimizerPlacement::joined; break;
  }
  return changed;
}

std::vector<SmallerPolicy> smaller_policies(const Configuration& configuration) {
  const auto bf16_moments = [](Configuration& changed) { changed.train.optimizer_state = Precision::bf16; };
  const auto no_graphs = [](Configuration& changed) {
    changed = with_policy(changed, GraphImplementation::none);
  };
  const auto recompute = [](Configuration& changed) { changed.train.recompute = {RecomputeModule::full}; };
  Changes changes(configuration);
  changes.add("train.recompute=full", recompute);
  changes.combine("train.recompute=full", recompute);
  const auto shard_optimizer = [](Configuration& changed) {
    if (changed.parallel.data > 1) changed.parallel.shard_optimizer = true;
  };
  changes.add("parallel.shard_optimizer=true", shard_optimizer);
  changes.combine("parallel.shard_optimizer=true", shard_optimizer);
  changes.add("graph.impl=none", no_graphs);
  changes.add("train.optimizer_state=bf16", bf16_moments);
  changes.combine("train.optimizer_state=bf16", bf16_moments);
  const std::int64_t sequences = configuration.train.microbatch;
  for (std::int64_t parts = 2; parts <= sequences; ++parts) {
    if (sequences % parts != 0) continue;
    const auto split = [parts](Configuration& changed) {
      changed.train.microbatch /= parts;
      changed.train.microbatches *= parts;
    };
    const std::string text = fmt::format("train.microbatch={} train.microbatches={}", sequences / parts,
                                         configuration.train.microbatches * parts);
    changes.add(text, split);
    if (parts == sequences) changes.combine(text, split);
  }
  changes.combine("graph.impl=none", no_graphs);
  return std::move(changes).take();
}

void require_memory_for_parameters(const Configuration& configuration, const ModelShard& shard) {
  const std::size_t needed = least_memory(configuration, shard);
  const Limit limit = limit_of(configuration);
  if (needed <= limit.bytes) return;
  std::size_t least = needed;
  for (const SmallerPolicy& policy : smaller_policies(configuration))
    least = std::min(least, least_memory(policy.configuration, same_rank(policy.configuration, shard)));
  if (least <= limit.bytes) return;
  refuse(fmt::format(
      "weights, gradients and optimizer state alone need {} and {}: no change of policy fits, the "
      "least is {}; {} or make the model smaller",
      text_of(needed), limit.words, text_of(least), limit.remedy));
}

void require_memory(const Configuration& configuration, const ModelShard& shard,
                    const MemoryForecast& needed) {
  const Limit limit = limit_of(configuration);
  if (needed.total() <= limit.bytes) return;
  const std::string beginning = fmt::format("training needs {} and {}", text_of(needed.total()), limit.words);
  std::size_t least = needed.total();
  std::string change = "the configuration as it is";
  for (const SmallerPolicy& policy : smaller_policies(configuration)) {
    const std::size_t bytes =
        forecast_memory(policy.configuration, same_rank(policy.configuration, shard)).total();
    if (bytes <= limit.bytes)
      refuse(fmt::format("{}: {} would fit, with {}", beginning, policy.change, text_of(bytes)));
    if (bytes < least) {
      least = bytes;
      change = policy.change;
    }
  }
  refuse(fmt::format("{}: no change of policy fits, the least is {} with {}; {} or make the model smaller",
                     beginning, text_of(least), change, limit.remedy));
}

}  // namespace encore::model
