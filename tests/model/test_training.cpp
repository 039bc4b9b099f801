// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include "trainers.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace {

using namespace encore;
using namespace encore::tests;

std::vector<std::string> on(const std::string& backend, const std::string& family,
                            const std::vector<std::string>& more = {}) {
  auto settings = tiny_model(family);
  settings.push_back("backend=" + backend);
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<float> gradients_of(model::Trainer& trainer) {
  std::vector<float> all;
  for (const auto& slice : trainer.layout().slices()) {
    const auto values = model::to_float(trainer.read(model::ParameterArray::gradients, slice),
                                        *trainer.type_of(model::ParameterArray::gradients));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double(a[i]) - double(b[i]), 2);
    norm += std::pow(double(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST_CASE("microbatches accumulate to the gradient of one large batch, with ignored labels spread unevenly") {
  for (const std::string& backend : backend_names())
    for (const std::string family : {"gpt2", "llama"}) {
      const auto large = resolve(on(backend, family, {"train.microbatch=6", "train.microbatches=1"}));
      const auto small = resolve(on(backend, family, {"train.microbatch=2", "train.microbatches=3"}));
      const Batch batch = random_batch(large, 0);
      const auto one = model::make_trainer(large), three = model::make_trainer(small);
      one->set_batch(batch.ids, batch.labels);
      three->set_batch(batch.ids, batch.labels);
      const auto a = one->step(0.01), b = three->step(0.01);
      CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-6));
      CHECK(relative_difference(gradients_of(*three), gradients_of(*one)) < 1e-5);
    }
}

TEST_CASE("gradients are set anew in each step, not added to the last one's") {
  for (const std::string& backend : backend_names()) {
    const auto configuration = resolve(on(backend, "llama", {"graph.warmup_steps=1"}));
    const auto trainer = model::make_trainer(configuration);
    const Batch batch = random_batch(configuration, 0);
    trainer->set_batch(batch.ids, batch.labels);
    trainer->step(0.0);
    const auto first = gradients_of(*trainer);
    for (int step = 0; step < 3; ++step) trainer->step(0.0);
    CHECK(gradients_of(*trainer) == first);
  }
}

TEST_CASE("training lowers the loss of a batch to almost nothing") {
  for (const std::string& backend : backend_names())
    for (const std::string family : {"gpt2", "llama"}) {
      const auto configuration = resolve(on(backend, family));
      const auto trainer = model::make_trainer(configuration);
      const Batch batch = random_batch(configuration, 0);
      double loss = 0;
      for (int step = 0; step < 80; ++step) {
        trainer->set_batch(batch.ids, batch.labels);
        loss = trainer->step(0.01).loss;
        if (step == 0) CHECK(loss == doctest::Approx(std::log(61.0)).epsilon(0.05));
      }
      CHECK(loss < 0.3);
    }
}

TEST_CASE("evaluating between steps changes nothing in training, and gives the same number twice") {
  for (const std::string& backend : backend_names()) {
    const auto configuration = resolve(on(backend, "gpt2", {"model.dropout=0.1", "graph.warmup_steps=1"}));
    const auto plain = model::make_trainer(configuration), watched = model::make_trainer(configuration);
    for (int step = 0; step < 6; ++step) {
      const Batch batch = random_batch(configuration, step);
      plain->set_batch(batch.ids, batch.labels);
      watched->set_batch(batch.ids, batch.labels);
      const double first = watched->evaluate(batch.ids, batch.labels);
      CHECK(watched->evaluate(batch.ids, batch.labels) == first);
      CHECK(plain->step(0.01).loss == watched->step(0.01).loss);
    }
    CHECK(state_of(*plain) == state_of(*watched));
  }
}

TEST_CASE("a batch whose labels are all ignored has no loss and moves nothing but decayed weights") {
  for (const std::string& backend : backend_names()) {
    const auto configuration = resolve(on(backend, "llama", {"train.weight_decay=0"}));
    const auto trainer = model::make_trainer(configuration);
    Batch batch = random_batch(configuration, 0);
    std::fill(batch.labels.begin(), batch.labels.end(), -100);
    const auto before = state_of(*trainer).bytes;
    trainer->set_batch(batch.ids, batch.labels);
    const auto result = trainer->step(0.01);
    CHECK(result.loss == 0.0);
    CHECK(result.gradient_norm == 0.0);
    CHECK(state_of(*trainer).bytes == before);
  }
}

TEST_CASE("tokens and labels outside the vocabulary are refused with their place") {
  const auto configuration = resolve(on("serial", "llama"));
  const auto trainer = model::make_trainer(configuration);
  Batch batch = random_batch(configuration, 0);
  batch.ids[5] = 61;
  CHECK_THROWS_WITH_AS(trainer->set_batch(batch.ids, batch.labels),
                       "token 61 at place 5 of the batch is outside the vocabulary of 61", InputFileError);
  batch.ids[5] = -1;
  CHECK_THROWS_AS(trainer->set_batch(batch.ids, batch.labels), InputFileError);
  batch.ids[5] = 0;
  batch.labels[2] = 1000;
  CHECK_THROWS_AS(trainer->set_batch(batch.ids, batch.labels), InputFileError);
}

TEST_CASE("a model larger than the memory is refused before anything is allocated, with both numbers") {
  for (const std::string& backend : backend_names()) {
    const auto configuration =
        resolve(on(backend, "llama",
                   {"model.vocab=400000000", "model.hidden=8192", "model.heads=64", "model.kv_heads=64"}));
    CHECK_THROWS_AS(model::make_trainer(configuration), OutOfMemoryError);
    const auto limited = resolve(on(backend, "llama", {"graph.memory_limit=1000"}));
    CHECK_THROWS_AS(model::make_trainer(limited), OutOfMemoryError);
  }
}

TEST_CASE("two trainers of one process do not disturb each other") {
  for (const std::string& backend : backend_names()) {
    const auto gpt2 = resolve(on(backend, "gpt2", {"graph.warmup_steps=1"}));
    const auto llama = resolve(on(backend, "llama", {"graph.warmup_steps=1"}));
    const auto run = [&](bool together) {
      const auto first = model::make_trainer(gpt2);
      const auto second = together ? model::make_trainer(llama) : nullptr;
      for (int step = 0; step < 5; ++step) {
        const Batch a = random_batch(gpt2, step);
        first->set_batch(a.ids, a.labels);
        first->step(0.01);
        if (!second) continue;
        second->set_batch(a.ids, a.labels);
        second->step(0.01);
      }
      return state_of(*first);
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE("gradient clipping scales the update when the norm is above the threshold only") {
  for (const std::string& backend : backend_names()) {
    const auto norm_after_step = [&](const std::string& clip) {
      const auto configuration = resolve(on(backend, "llama", {"train.clip=" + clip}));
      const auto trainer = model::make_trainer(configuration);
      const Batch batch = random_batch(configuration, 0);
      trainer->set_batch(batch.ids, batch.labels);
      const double norm = trainer->step(0.01).gradient_norm;
      double moment = 0;
      for (const auto& slice : trainer->layout().slices())
        for (const float value : model::to_float(trainer->read(model::ParameterArray::first_moment, slice),
                                                 *trainer->type_of(model::ParameterArray::first_moment)))
          moment += double(value) * double(value);
      return std::pair(norm, std::sqrt(moment) / (1 - configuration.train.beta1));
    };
    const auto [norm, unclipped] = norm_after_step("0");
    CHECK(unclipped == doctest::Approx(norm).epsilon(1e-4));
    const auto [same_norm, clipped] = norm_after_step(std::to_string(norm / 4));
    CHECK(same_norm == doctest::Approx(norm).epsilon(1e-6));  // added up in another order
    CHECK(clipped == doctest::Approx(norm / 4).epsilon(1e-4));
    CHECK(norm_after_step(std::to_string(norm * 4)).second == doctest::Approx(norm).epsilon(1e-4));
  }
}

}  // namespace
