// SPDX-License-Identifier: Apache-2.0
#include "learning_rate.hpp"

#include <encore/model/files/learning_rate.hpp>

namespace encore::command {

double learning_rate(const model::TrainConfiguration& train, std::int64_t steps_done) {
  const model::LearningRateSchedule schedule{
      .peak = train.lr,
      .floor = train.min_lr,
      .warmup_steps = train.lr_warmup_steps,
      .decay_steps = train.lr_decay_steps > 0 ? train.lr_decay_steps : train.steps};
  return model::learning_rate(schedule, steps_done);
}

}  // namespace encore::command
