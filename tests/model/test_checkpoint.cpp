// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/safetensors_file.hpp>
#include <encore/model/files/safetensors_writer.hpp>

#include "trainers.hpp"

#include <doctest/doctest.h>

#include <filesystem>

namespace {

using namespace encore;
using namespace encore::tests;
namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() / ("encore-checkpoint-" + std::to_string(std::random_device{}()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

std::vector<double> run(model::Trainer& trainer, std::int64_t steps) {
  std::vector<double> losses;
  for (std::int64_t i = 0; i < steps; ++i) {
    const Batch batch = random_batch(trainer.configuration(), trainer.steps_done());
    trainer.set_batch(batch.ids, batch.labels);
    losses.push_back(trainer.step(0.01).loss);
  }
  return losses;
}

const std::vector<std::vector<std::string>> variants{
    {"model.dropout=0.1"},
    {"model.dropout=0.1", "train.precision=bf16", "train.gradient_type=bf16", "train.optimizer_state=bf16"},
    {"train.precision=bf16", "train.gradient_type=fp32", "train.master_weights=true"}};

TEST_CASE(
    "half the steps, saved and loaded into another process' trainer, then the rest, equal all steps bit for "
    "bit") {
  const Folder folder;
  for (const std::string& backend : backend_names())
    for (const std::string family : {"gpt2", "llama"})
      for (const auto& variant : variants) {
        auto settings = tiny_model(family);
        settings.push_back("backend=" + backend);
        const auto configuration = resolve(settings, variant);
        const fs::path file = folder.path / "half.safetensors";
        const auto whole = model::make_trainer(configuration);
        const auto whole_losses = run(*whole, 20);
        const auto first = model::make_trainer(configuration);
        auto losses = run(*first, 10);
        model::save_checkpoint(file, *first);
        const auto second = model::make_trainer(resolve(settings, [&] {
          auto other_seed = variant;
          other_seed.push_back("seed=77");
          return other_seed;
        }()));
        const auto loaded = model::load_checkpoint(file, *second);
        CHECK(loaded.resumes);
        CHECK(loaded.steps_done == 10);
        const auto rest = run(*second, 10);
        losses.insert(losses.end(), rest.begin(), rest.end());
        CHECK(losses == whole_losses);
        CHECK(state_of(*second) == state_of(*whole));
      }
}

TEST_CASE("loading into a trainer that has captured already makes its replays use the loaded weights") {
  const Folder folder;
  for (const std::string& backend : backend_names()) {
    auto settings = tiny_model("llama");
    settings.push_back("backend=" + backend);
    settings.push_back("graph.warmup_steps=0");
    const auto configuration = resolve(settings);
    const auto source = model::make_trainer(configuration), target = model::make_trainer(configuration);
    run(*source, 5);
    const fs::path file = folder.path / "five.safetensors";
    model::save_checkpoint(file, *source);
    run(*target, 3);
    model::load_checkpoint(file, *target);
    CHECK(run(*target, 5) == run(*source, 5));
    CHECK(state_of(*target) == state_of(*source));
  }
}

TEST_CASE("a checkpoint's model is read back from its metadata") {
  const Folder folder;
  for (const std::string family : {"gpt2", "llama"}) {
    const auto configuration = resolve(tiny_model(family), {"backend=serial"});
    const auto trainer = model::make_trainer(configuration);
    model::save_checkpoint(folder.path / "m.safetensors", *trainer);
    CHECK(model::read_model_configuration(folder.path / "m.safetensors") == configuration.model);
  }
}

TEST_CASE("weights without training state load and start at the first step") {
  const Folder folder;
  const auto configuration = resolve(tiny_model("llama"), {"backend=serial"});
  const auto source = model::make_trainer(configuration), target = model::make_trainer(configuration);
  run(*source, 3);
  const fs::path file = folder.path / "weights.safetensors";
  {
    model::SafetensorsWriter writer(file);
    for (const auto& slice : source->layout().slices())
      writer.add(slice.name, model::StoredType::f32, slice.shape);
    for (const auto& slice : source->layout().slices())
      writer.write(slice.name, source->read(model::ParameterArray::weights, slice));
    writer.commit();
  }
  const auto loaded = model::load_checkpoint(file, *target);
  CHECK(!loaded.resumes);
  CHECK(target->steps_done() == 0);
  const Batch batch = random_batch(configuration, 0);
  CHECK(target->evaluate(batch.ids, batch.labels) == source->evaluate(batch.ids, batch.labels));
}

TEST_CASE("missing, misshapen and foreign tensors are refused by name, and the trainer stays as it was") {
  const Folder folder;
  const auto configuration = resolve(tiny_model("llama"), {"backend=serial"});
  const auto trainer = model::make_trainer(configuration);
  const auto before = state_of(*trainer);
  const fs::path file = folder.path / "wrong.safetensors";
  const auto message_for = [&](auto&& change) -> std::string {
    model::SafetensorsWriter writer(file);
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors;
    for (const auto& slice : trainer->layout().slices()) tensors.emplace_back(slice.name, slice.shape);
    change(tensors);
    for (const auto& [name, shape] : tensors) writer.add(name, model::StoredType::f32, shape);
    for (const auto& [name, shape] : tensors) {
      std::size_t elements = 1;
      for (const auto extent : shape) elements *= static_cast<std::size_t>(extent);
      writer.write(name, std::vector<std::byte>(elements * 4));
    }
    writer.commit();
    try {
      model::load_checkpoint(file, *trainer);
    } catch (const InputFileError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message_for([](auto& tensors) { tensors.pop_back(); }).find("lm_head.weight") != std::string::npos);
  CHECK(message_for([](auto& tensors) { tensors[0].second[0] += 1; }).find("[62, 32]") != std::string::npos);
  CHECK(message_for([](auto& tensors) {
          tensors.push_back({"model.layers.2.mlp.up_proj.weight", {4}});
        }).find("model.layers.2.mlp.up_proj.weight") != std::string::npos);
  CHECK(state_of(*trainer) == before);
}

}  // namespace
