// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/safetensors_file.hpp>
#include <encore/model/golden.hpp>
#include <encore/model/trainer.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace encore::model {

namespace {

/// Norm of the difference over the norm of the reference. NaN and infinity count as infinitely wrong.
template <class Values, class Reference>
double relative_error(const Values& values, const Reference& reference) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double expected = static_cast<double>(reference[i]);
    difference += (static_cast<double>(values[i]) - expected) * (static_cast<double>(values[i]) - expected);
    norm += expected * expected;
  }
  const double error = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
  return std::isfinite(error) ? error : HUGE_VAL;
}

/// Throws InputFileError unless the tensor has as many elements as what it is compared with.
void require_elements(const SafetensorsFile& file, const std::string& name, std::int64_t elements) {
  const std::int64_t found = file.tensor(name).elements();
  if (found != elements)
    throw InputFileError(fmt::format("'{}': tensor '{}' has {} elements instead of {}", file.path().string(),
                                     name, found, elements));
}

/// Throws InputFileError for a token that no vocabulary can have.
std::vector<std::int32_t> tokens_of(const SafetensorsFile& file, const std::string& name) {
  std::vector<std::int32_t> tokens;
  for (const std::int64_t token : file.int64(name)) {
    if (token != static_cast<std::int32_t>(token))
      throw InputFileError(
          fmt::format("'{}': tensor '{}' holds {}, which is no token", file.path().string(), name, token));
    tokens.push_back(static_cast<std::int32_t>(token));
  }
  return tokens;
}

}  // namespace

double GoldenErrors::largest() const {
  double largest = std::max(logits_error, loss_error);
  for (const auto& [name, error] : gradient_error) largest = std::max(largest, error);
  for (const double error : adamw_loss_error) largest = std::max(largest, error);
  for (const auto& [name, error] : final_error) largest = std::max(largest, error);
  return largest;
}

Configuration golden_configuration(const std::filesystem::path& path, const Configuration& wishes) {
  const SafetensorsFile file(path);
  Configuration configuration = wishes;
  configuration.model = read_model_configuration(path);
  configuration.model.dropout = 0;  // hf_golden.py switches it off
  configuration.model.attention_dropout = 0;
  const StoredTensor& ids = file.tensor("ids");
  if (ids.shape.size() != 2)
    throw InputFileError(
        fmt::format("'{}': tensor 'ids' has {} dimensions instead of 2", path.string(), ids.shape.size()));
  TrainConfiguration& train = configuration.train;
  train.microbatch = ids.shape[0];
  train.microbatches = 1;
  train.seq = ids.shape[1];
  train.steps = file.tensor("loss").elements();
  train.clip = 0;
  train.decay_all = true;
  train.expert_bias_rate = 0;  // the reference's optimizer does not move them
  train.lr_warmup_steps = 0;
  const auto optimizer = nlohmann::json::parse(file.metadata("optimizer"), nullptr, false);
  try {
    train.lr = optimizer.at("lr");
    train.min_lr = train.lr;
    train.beta1 = optimizer.at("betas").at(0);
    train.beta2 = optimizer.at("betas").at(1);
    train.epsilon = optimizer.at("eps");
    train.weight_decay = optimizer.at("weight_decay");
  } catch (const nlohmann::json::exception& error) {
    throw InputFileError(
        fmt::format("'{}': metadata 'optimizer' does not tell lr, betas, eps and weight_decay ({})",
                    path.string(), error.what()));
  }
  return configuration;
}

GoldenErrors evaluate_golden(const std::filesystem::path& path, const Configuration& configuration) {
  const SafetensorsFile file(path);
  const TrainConfiguration& train = configuration.train;
  require_elements(file, "labels", train.microbatch * train.seq);
  require_elements(file, "logits", train.microbatch * train.seq * configuration.model.vocab);
  if (file.tensor("loss").elements() == 0)
    throw InputFileError(fmt::format("'{}': tensor 'loss' is empty", path.string()));
  const std::unique_ptr<Trainer> trainer = make_trainer(configuration);
  const std::vector<ParameterSlice> slices =
      trainer->layout().slices_in([&file](const std::string& name) { return file.contains("w." + name); });
  for (const ParameterSlice& slice : slices) {
    if (const StoredTensor& tensor = file.tensor("w." + slice.name); tensor.shape != slice.shape)
      throw InputFileError(
          fmt::format("'{}': tensor 'w.{}' has another shape than the model's", path.string(), slice.name));
    require_elements(file, "g." + slice.name, slice.elements());
    if (file.contains("final." + slice.name)) require_elements(file, "final." + slice.name, slice.elements());
    trainer->set_weights(slice, file.float32("w." + slice.name));
  }
  const std::vector<std::int32_t> ids = tokens_of(file, "ids"), labels = tokens_of(file, "labels");
  const std::vector<double> losses = file.float64("loss");

  GoldenErrors errors;
  trainer->evaluate(ids, labels);
  errors.logits_error = relative_error(trainer->logits(), file.float32("logits"));
  for (std::size_t step = 0; step < losses.size(); ++step) {
    trainer->set_batch(ids, labels);
    const StepResult result = trainer->step(configuration.train.lr);
    errors.adamw_loss_error.push_back(std::abs(result.loss - losses[step]) / std::abs(losses[step]));
    if (step == 0) errors.tokens_of_experts = trainer->tokens_of_experts();
    if (step == 0)
      for (const ParameterSlice& slice : slices) {
        const auto gradient = to_float(trainer->read(ParameterArray::gradients, slice),
                                       trainer->type_of(ParameterArray::gradients).value());
        errors.gradient_error[slice.name] = relative_error(gradient, file.float32("g." + slice.name));
      }
    // The reference was written before the last update.
    if (step + 2 == losses.size())
      for (const ParameterSlice& slice : slices)
        if (file.contains("final." + slice.name)) {
          const ParameterArray array =
              trainer->type_of(ParameterArray::master) ? ParameterArray::master : ParameterArray::weights;
          errors.final_error[slice.name] =
              relative_error(to_float(trainer->read(array, slice), trainer->type_of(array).value()),
                             file.float32("final." + slice.name));
        }
  }
  errors.loss_error = errors.adamw_loss_error.at(0);
  return errors;
}

}  // namespace encore::model
