// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include "temporary_folder.hpp"
#include "trainers.hpp"

#include <doctest/doctest.h>

namespace {

using namespace encore;
using namespace encore::tests;

std::vector<std::string> tuned(const std::string& backend, const std::filesystem::path& cache) {
  auto settings = tiny_model("llama");
  for (const std::string& more :
       {"backend=" + backend, std::string("train.precision=bf16"), std::string("train.tune_products=on"),
        "train.tuning_cache=" + cache.string(), std::string("graph.warmup_steps=1")})
    settings.push_back(more);
  return settings;
}

TrainingState trained(model::Trainer& trainer) {
  for (int step = 0; step < 3; ++step) {
    const Batch batch = random_batch(trainer.configuration(), step);
    trainer.set_batch(batch.ids, batch.labels);
    trainer.step(0.01);
  }
  return state_of(trainer);
}

}  // namespace

TEST_CASE("a process that finds a tuning cache measures nothing and trains to the same bits") {
  for (const std::string& backend : backend_names()) {
    CAPTURE(backend);
    const TemporaryFolder folder;
    const auto first = model::make_trainer(resolve(tuned(backend, folder / "products")));
    const TrainingState state = trained(*first);
    const auto second = model::make_trainer(resolve(tuned(backend, folder / "products")));
    CHECK(trained(*second) == state);
    CHECK(second->tuning().measured == 0);
    CHECK(second->tuning().note.empty());
    if (backend == "cuda") {
      CHECK(first->tuning().measured > 0);
      CHECK(second->tuning().taken == first->tuning().measured);
      CHECK(folder.files() == 1);
    } else {
      CHECK(first->tuning().measured == 0);
      CHECK(folder.files() == 0);  // There is nothing to tune, so nothing is kept.
    }
  }
}

TEST_CASE("tuned products on hosts are the ones that are not tuned") {
  for (const std::string& backend : backend_names()) {
    if (backend == "cuda") continue;
    const TemporaryFolder folder;
    const auto with = model::make_trainer(resolve(tuned(backend, folder / "products")));
    const auto without = model::make_trainer(resolve(tuned(backend, ""), {"train.tune_products=off"}));
    CHECK(trained(*with) == trained(*without));
  }
}

TEST_CASE("an ill-formed tuning cache stops a trainer before it takes memory, with the file's name") {
  const TemporaryFolder folder;
  for (const std::string& backend : backend_names()) {
    write_bytes(folder / "products", "encore tuned products 1\nnonsense\n");
    try {
      (void)model::make_trainer(resolve(tuned(backend, folder / "products")));
      FAIL("it was accepted");
    } catch (const InputFileError& error) {
      const std::string sentence = error.what();
      CHECK(sentence.find((folder / "products").string()) != std::string::npos);
      CHECK(sentence.find("line 2") != std::string::npos);
    }
    CHECK(read_bytes(folder / "products") == "encore tuned products 1\nnonsense\n");
    CHECK_THROWS_AS(model::make_trainer(resolve(tuned(backend, folder.path()))), InputFileError);
    CHECK_THROWS_AS(model::make_trainer(resolve(tuned(backend, folder / "no/such/folder/products"))),
                    OutputFileError);
  }
}

TEST_CASE("a tuning cache of another version is said to be made anew") {
  const TemporaryFolder folder;
  write_bytes(folder / "products", "encore tuned products 2\nwhatever that means");
  const auto trainer = model::make_trainer(resolve(tuned(backend_names().front(), folder / "products")));
  CHECK(trainer->tuning().note.find("another version") != std::string::npos);
}

TEST_CASE("a tuning cache without tuning is refused, and so is a path with control characters") {
  CHECK_THROWS_AS(resolve(tiny_model("llama"), {"train.tuning_cache=products"}), ConfigurationError);
  CHECK_THROWS_AS(resolve(tiny_model("llama"), {"train.tune_products=on", "train.tuning_cache=a\nb"}),
                  ConfigurationError);
  CHECK_THROWS_AS(resolve(tiny_model("llama"), {"train.tune_products=maybe"}), ConfigurationError);
}
