// SPDX-License-Identifier: Apache-2.0
#include "configuration_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "configuration_table.hpp"

namespace encore::model {
namespace {

void check_train(const Configuration& configuration) {
  const TrainConfiguration& train = configuration.train;
  if (train.seq > configuration.model.seq)
    refuse_model(
        fmt::format("train.seq = {} must not exceed model.seq = {}", train.seq, configuration.model.seq));
  if (train.microbatch * train.seq > std::numeric_limits<std::int32_t>::max())
    refuse_model(fmt::format(
        "train.microbatch = {} times train.seq = {} must be below 2^31 tokens: use more microbatches",
        train.microbatch, train.seq));
  const std::int64_t topk = std::max(configuration.model.topk, std::int64_t{1});
  if (train.microbatch * train.seq * topk > std::numeric_limits<std::int32_t>::max())
    refuse_model(fmt::format(
        "train.microbatch = {} times train.seq = {} times model.topk = {} must be below 2^31 rows "
        "of the experts: use more microbatches",
        train.microbatch, train.seq, topk));
  // A step is a list of segments, a few for every layer of every microbatch: some 16 KiB of host memory each time.
  constexpr std::int64_t most_passes = 100'000;
  if (configuration.model.layers * train.microbatches > most_passes)
    refuse_model(fmt::format(
        "train.microbatches = {} times model.layers = {} must be at most {}: use larger microbatches",
        train.microbatches, configuration.model.layers, most_passes));
  if (train.min_lr > train.lr)
    refuse_model(fmt::format("train.min_lr = {} must not exceed train.lr = {}", train.min_lr, train.lr));
  if (train.lr_decay_steps != 0 && train.lr_decay_steps < train.lr_warmup_steps)
    refuse_model(fmt::format("train.lr_decay_steps = {} must be 0 or at least train.lr_warmup_steps = {}",
                             train.lr_decay_steps, train.lr_warmup_steps));
  if (!train.tuning_cache.empty() && train.tune_products == ProductTuning::off)
    refuse_model("train.tuning_cache needs train.tune_products = on");
  if (train.precision == Precision::fp32 && train.gradient_type == Precision::bf16)
    refuse_model("train.gradient_type = bf16 needs train.precision = bf16");
  if (train.precision == Precision::fp32 && train.master_weights)
    refuse_model(
        "train.master_weights = true needs train.precision = bf16: fp32 weights are their own master");
}

}  // namespace

void check(const Configuration& configuration) {
  check(configuration.model);
  for (const Key& key : key_table())
    if (!key.name.starts_with("model.")) check_value(key, key.read(configuration), {});
  check_train(configuration);
  check_rules(configuration);
}

}  // namespace encore::model
