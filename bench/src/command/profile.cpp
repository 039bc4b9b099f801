// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <encore/model/checkpoint.hpp>
#include <encore/model/trainer.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "../device/session.hpp"
#include "configure.hpp"
#include "data.hpp"
#include "json_output.hpp"
#include "learning_rate.hpp"
#include "profile_report.hpp"
#include "ranks.hpp"

namespace encore::command {

nlohmann::ordered_json profile_document(const graph::StepProfile& profile, ProfileGrouping grouping,
                                        const model::Trainer& trainer) {
  nlohmann::ordered_json json = profile_json(profile, grouping);
  json["device"] = trainer.device_description();
  json["configuration"] = nlohmann::ordered_json::parse(model::to_json(trainer.configuration()));
  return json;
}

namespace {

int profile_rank(const ProfileCommandOptions& options, const model::Configuration& configuration,
                 const Seat& seat, Console& console) {
  TrainingData data(options.data, configuration, seat.data_rank);
  const DeviceSession session(options.threads);
  const auto trainer = model::make_trainer(configuration, seat.groups);
  if (options.configuration.load) model::load_checkpoint(*options.configuration.load, *trainer);
  const std::int64_t length = recorded_length(configuration);
  const auto rate = [&] { return learning_rate(configuration.train, trainer->steps_done()); };
  // Moments that are zero, and kernels that were never loaded, are no state to measure.
  for (int step = 0; step < options.warmup_steps; ++step) {
    data.set_batch(trainer->steps_done(), *trainer, length);
    trainer->step_eagerly(rate());
  }
  data.set_batch(trainer->steps_done(), *trainer, length);
  const graph::StepProfile result =
      trainer->profile(rate(), {.samples = options.samples, .step_samples = options.step_samples});
  if (!options.json) {
    console.print(fmt::format("{} on {} ({})\n\n", name_of(configuration.train.precision),
                              name_of(configuration.backend), trainer->device_description()));
    console.print(profile_text(result, options.grouping, name_of(configuration.train.precision)));
    return 0;
  }
  print_json(profile_document(result, options.grouping, *trainer), console);
  return 0;
}

}  // namespace

int profile(const ProfileCommandOptions& options, Console& console) {
  const model::Configuration configuration = resolve(options.configuration, "bytes").configuration;
  return on_ranks(configuration, options.threads, console, [&](const Seat& seat, Console& of_rank) {
    return profile_rank(options, configuration, seat, of_rank);
  });
}

}  // namespace encore::command
