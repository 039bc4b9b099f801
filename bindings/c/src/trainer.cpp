// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <encore/graph/dump.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/learning_rate.hpp>
#include <encore/model/memory_forecast.hpp>

#include <algorithm>
#include <cstring>

#include "configuration.hpp"

namespace encore::c {

TrainerState::TrainerState(std::shared_ptr<RuntimeState> runtime, const model::Configuration& configuration)
    : Object(std::move(runtime), "trainer of a " + configuration.model.family + " model on " +
                                     std::string(model::name_of(configuration.backend))),
      trainer_(model::make_trainer(configuration)) {
  for (const model::ParameterSlice& slice : trainer_->layout().slices()) slices_.emplace(slice.name, slice);
  for (const model::Parameter& parameter : trainer_->layout().parameters())
    slices_.insert_or_assign(parameter.name,
                             model::ParameterSlice{parameter.name, parameter.shape, parameter.offset});
}

TrainerState& state_of(const encore_trainer* trainer) {
  require_pointer(trainer, "trainer");
  return *trainer->state;
}

namespace {

model::Configuration resolved(const encore_configuration* configuration) {
  require_pointer(configuration, "configuration");
  return configuration->sources.resolve().configuration;
}

model::BatchShape shape_of(const model::Configuration& configuration, const std::int64_t* shape) {
  if (shape == nullptr)
    return {configuration.train.microbatches, configuration.train.microbatch, configuration.train.seq};
  for (int i = 0; i < 3; ++i)
    if (shape[i] < 1) throw UsageError("argument 'shape' has an extent below 1");
  return {shape[0], shape[1], shape[2]};
}

/// Fills as much of the caller's structure as it has room for.
template <class Structure>
void fill(Structure* destination, Structure source) {
  if (destination->size < sizeof(std::size_t))
    throw UsageError("member 'size' of the structure is not set: set it to its sizeof");
  source.size = std::min(destination->size, sizeof(Structure));
  std::memcpy(destination, &source, source.size);
}

encore_step_result result_of(const model::StepResult& step) {
  encore_step_result result{};
  result.step = step.step;
  result.loss = step.loss;
  result.gradient_norm = step.gradient_norm;
  result.milliseconds = step.milliseconds;
  result.device_milliseconds = step.device_milliseconds;
  result.tokens = step.tokens;
  result.mode = static_cast<std::int32_t>(step.report.mode);
  result.skipped = step.skipped ? 1 : 0;
  result.graph_nodes = step.report.graph_nodes;
  result.eager_launches = step.report.eager_launches;
  result.fallbacks = step.report.fallbacks;
  result.graph_bytes = step.report.graph_bytes;
  return result;
}
static_assert(static_cast<int>(graph::StepMode::eager) == ENCORE_EAGER);
static_assert(static_cast<int>(graph::StepMode::capture) == ENCORE_CAPTURE);
static_assert(static_cast<int>(graph::StepMode::replay) == ENCORE_REPLAY);

template <class Step>
int run_step(encore_trainer* trainer, encore_step_result* result, const Step& step) {
  return guarded([&] {
    if (result != nullptr && result->size < sizeof(std::size_t))
      throw UsageError("member 'size' of the result is not set: set it to sizeof(encore_step_result)");
    TrainerState& state = state_of(trainer);
    state.with_trainer([&](model::Trainer& model) {
      const model::StepResult done = step(model);
      state.eager_reason = done.eager_reason;
      if (result != nullptr) fill(result, result_of(done));
    });
  });
}

std::string plan_of(const model::Trainer& trainer) {
  return graph::to_text(graph::make_dump(trainer.outline(), trainer.memory_plan(), trainer.runs(), {}, {}));
}

}  // namespace

}  // namespace encore::c

using encore::c::guarded;
using encore::c::require_pointer;
using encore::c::state_of;
using encore::model::Trainer;

extern "C" {

int encore_trainer_create(encore_runtime* runtime, const encore_configuration* configuration,
                          encore_trainer** trainer) {
  return guarded([&] {
    require_pointer(runtime, "runtime");
    require_pointer(trainer, "trainer");
    *trainer = new encore_trainer{
        std::make_unique<encore::c::TrainerState>(runtime->state, encore::c::resolved(configuration))};
  });
}

int encore_trainer_destroy(encore_trainer* trainer) {
  return guarded([&] { delete trainer; });
}

int encore_forecast_memory(encore_runtime* runtime, const encore_configuration* configuration,
                           uint64_t* bytes) {
  return guarded([&] {
    require_pointer(runtime, "runtime");
    require_pointer(bytes, "bytes");
    *bytes = encore::model::forecast_memory(encore::c::resolved(configuration)).total();
  });
}

int encore_trainer_batch_shape(const encore_trainer* trainer, int64_t shape[3]) {
  return guarded([&] {
    require_pointer(shape, "shape");
    state_of(trainer).with_trainer([&](Trainer& model) {
      const auto extents = encore::c::shape_of(model.configuration(), nullptr);
      shape[0] = extents.microbatches;
      shape[1] = extents.sequences;
      shape[2] = extents.tokens;
    });
  });
}

int encore_trainer_set_batch(encore_trainer* trainer, const int32_t* ids, const int32_t* labels,
                             const int64_t shape[3]) {
  return guarded([&] {
    require_pointer(ids, "ids");
    require_pointer(labels, "labels");
    state_of(trainer).with_trainer([&](Trainer& model) {
      const auto extents = encore::c::shape_of(model.configuration(), shape);
      const auto count = static_cast<std::size_t>(extents.elements());
      model.set_batch(std::span(ids, count), std::span(labels, count), extents);
    });
  });
}

int encore_trainer_learning_rate(const encore_trainer* trainer, double* learning_rate) {
  return guarded([&] {
    require_pointer(learning_rate, "learning_rate");
    state_of(trainer).with_trainer([&](Trainer& model) {
      const encore::model::TrainConfiguration& train = model.configuration().train;
      *learning_rate =
          encore::model::learning_rate({train.lr, train.min_lr, train.lr_warmup_steps,
                                        train.lr_decay_steps > 0 ? train.lr_decay_steps : train.steps},
                                       model.steps_done());
    });
  });
}

int encore_trainer_step(encore_trainer* trainer, double learning_rate, encore_step_result* result) {
  return encore::c::run_step(trainer, result, [&](Trainer& model) { return model.step(learning_rate); });
}

int encore_trainer_step_eagerly(encore_trainer* trainer, double learning_rate, encore_step_result* result) {
  return encore::c::run_step(trainer, result,
                             [&](Trainer& model) { return model.step_eagerly(learning_rate); });
}

int encore_trainer_steps_done(const encore_trainer* trainer, int64_t* steps) {
  return guarded([&] {
    require_pointer(steps, "steps");
    state_of(trainer).with_trainer([&](Trainer& model) { *steps = model.steps_done(); });
  });
}

int encore_trainer_evaluate(encore_trainer* trainer, const int32_t* ids, const int32_t* labels,
                            int64_t sequences, double* loss) {
  return guarded([&] {
    require_pointer(ids, "ids");
    require_pointer(labels, "labels");
    require_pointer(loss, "loss");
    state_of(trainer).with_trainer([&](Trainer& model) {
      const encore::model::TrainConfiguration& train = model.configuration().train;
      if (sequences < 1 || sequences > train.microbatch)
        throw encore::UsageError("argument 'sequences' is " + std::to_string(sequences) +
                                 ": pass 1 to train.microbatch, which is " +
                                 std::to_string(train.microbatch));
      const auto count = static_cast<std::size_t>(sequences * train.seq);
      *loss = model.evaluate(std::span(ids, count), std::span(labels, count));
      state_of(trainer).evaluated_sequences = sequences;
    });
  });
}

int encore_trainer_logits_shape(const encore_trainer* trainer, int64_t shape[3]) {
  return guarded([&] {
    require_pointer(shape, "shape");
    encore::c::TrainerState& state = state_of(trainer);
    state.with_trainer([&](Trainer& model) {
      shape[0] = state.evaluated_sequences;
      shape[1] = model.configuration().train.seq;
      shape[2] = model.configuration().model.vocab;
    });
  });
}

int encore_trainer_logits(encore_trainer* trainer, float* logits, size_t count) {
  return guarded([&] {
    require_pointer(logits, "logits");
    state_of(trainer).with_trainer([&](Trainer& model) {
      const std::vector<float> values = model.logits();
      if (values.size() != count)
        throw encore::UsageError("argument 'count' is " + std::to_string(count) +
                                 ", but the last evaluation has " + std::to_string(values.size()) +
                                 " logits");
      std::ranges::copy(values, logits);
    });
  });
}

int encore_trainer_set_scalar(encore_trainer* trainer, const char* name, double value) {
  return guarded([&] {
    require_pointer(name, "name");
    state_of(trainer).with_trainer([&](Trainer& model) { model.set_scalar(name, value); });
  });
}

int encore_trainer_end_warmup(encore_trainer* trainer) {
  return guarded([&] { state_of(trainer).with_trainer([](Trainer& model) { model.end_warmup(); }); });
}

int encore_trainer_reset_graphs(encore_trainer* trainer) {
  return guarded([&] { state_of(trainer).with_trainer([](Trainer& model) { model.reset_graphs(); }); });
}

int encore_trainer_save(encore_trainer* trainer, const char* path) {
  return guarded([&] {
    require_pointer(path, "path");
    state_of(trainer).with_trainer([&](Trainer& model) { encore::model::save_checkpoint(path, model); });
  });
}

int encore_trainer_load(encore_trainer* trainer, const char* path, int* resumes) {
  return guarded([&] {
    require_pointer(path, "path");
    state_of(trainer).with_trainer([&](Trainer& model) {
      const auto loaded = encore::model::load_checkpoint(path, model);
      if (resumes != nullptr) *resumes = loaded.resumes ? 1 : 0;
    });
  });
}

int encore_trainer_configuration(const encore_trainer* trainer, char* text, size_t size, size_t* length) {
  return guarded([&] {
    state_of(trainer).with_trainer([&](Trainer& model) {
      encore::c::write_text(encore::model::to_json(model.configuration()), text, size, length);
    });
  });
}

int encore_trainer_plan(const encore_trainer* trainer, char* text, size_t size, size_t* length) {
  return guarded([&] {
    state_of(trainer).with_trainer(
        [&](Trainer& model) { encore::c::write_text(encore::c::plan_of(model), text, size, length); });
  });
}

int encore_trainer_refusal(const encore_trainer* trainer, char* text, size_t size, size_t* length) {
  return guarded([&] {
    state_of(trainer).with_trainer(
        [&](Trainer& model) { encore::c::write_text(model.refusal(), text, size, length); });
  });
}

int encore_trainer_eager_reason(const encore_trainer* trainer, char* text, size_t size, size_t* length) {
  return guarded([&] {
    encore::c::TrainerState& state = state_of(trainer);
    state.with_trainer([&](Trainer&) { encore::c::write_text(state.eager_reason, text, size, length); });
  });
}

}  // extern "C"
