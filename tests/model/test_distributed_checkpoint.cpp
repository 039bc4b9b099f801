// SPDX-License-Identifier: Apache-2.0
#include "rank_groups.hpp"
#include "temporary_folder.hpp"
#include "tiny_models.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/atomic_file.hpp>

#include <doctest/doctest.h>

#include <filesystem>
#include <mutex>

namespace {

using namespace encore;
using namespace encore::tests;

using Settings = std::vector<std::string>;

/// Steps on random batches, of which each data rank has its microbatches.
std::vector<double> steps(model::Trainer& trainer, std::int64_t from, std::int64_t to) {
  const model::Configuration& configuration = trainer.configuration();
  std::vector<double> losses;
  for (std::int64_t step = from; step < to; ++step) {
    set_share_of_batch(trainer, step);
    losses.push_back(trainer.step(configuration.train.lr).loss);
  }
  return losses;
}

/// Runs `body(trainer, groups, rank)` on every rank of the configuration.
template <class Body>
void on_trainers(const model::Configuration& configuration, const Body& body) {
  on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
    const auto trainer = model::make_trainer(configuration, groups);
    body(*trainer, groups, rank);
  });
}

Settings and_more(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

struct Case {
  const char* name;
  Settings model;
  std::vector<Settings> layouts;  ///< with the same microbatches in all
};

std::vector<Case> cases() {
  const Settings gentle{"train.lr=0.002", "train.min_lr=0.002", "backend=serial"};
  const Settings one{"train.microbatches=4"}, two{"train.microbatches=2", "parallel.data=2"},
      four{"train.microbatches=1", "parallel.data=4"},
      sharded{"train.microbatches=1", "parallel.data=4", "parallel.shard_optimizer=true"},
      tensor{"train.microbatches=2", "parallel.tensor=2", "parallel.data=2", "parallel.shard_optimizer=true"},
      staged{"train.microbatches=2", "parallel.pipeline=2", "parallel.data=2",
             "parallel.shard_optimizer=true"};
  return {{"llama", and_more(tiny_model("llama"), gentle), {one, two, four, sharded, tensor, staged}},
          {"gpt2", and_more(tiny_model("gpt2"), gentle), {one, sharded, tensor, staged}},
          {"experts", and_more(tiny_experts(), gentle), {one, two, sharded, staged}},
          {"hybrid with biases of experts",
           and_more(and_more(tiny_hybrid(), gentle), {"model.layers=4", "model.pattern=M*-E"}),
           {one, staged}},
          {"master weights",
           and_more(and_more(tiny_model("llama"), gentle),
                    {"train.precision=bf16", "train.master_weights=true", "train.optimizer_state=bf16"}),
           {one, sharded}}};
}

}  // namespace

TEST_CASE("a checkpoint of any layout is the file that one rank writes, and goes on at any other") {
  for (const Case& of : cases()) {
    CAPTURE(of.name);
    for (const Settings& writing : of.layouts) {
      CAPTURE(writing.back());
      const TemporaryFolder folder;
      const auto file = folder / "ranks.safetensors";
      std::vector<double> after;
      on_trainers(resolve(of.model, writing),
                  [&](model::Trainer& trainer, const model::RankGroups&, std::int64_t rank) {
                    steps(trainer, 0, 4);
                    model::save_checkpoint(file, trainer);
                    const auto losses = steps(trainer, 4, 8);
                    if (rank == 0) after = losses;
                  });
      CHECK(!std::filesystem::exists(folder / "ranks.safetensors.partial"));
      for (const Settings& reading : of.layouts) {
        CAPTURE(reading.back());
        std::vector<double> resumed;
        const auto again = folder / "again.safetensors";
        on_trainers(resolve(of.model, reading),
                    [&](model::Trainer& trainer, const model::RankGroups&, std::int64_t rank) {
                      const auto loaded = model::load_checkpoint(file, trainer);
                      CHECK(loaded.steps_done == 4);
                      model::save_checkpoint(again, trainer);
                      const auto losses = steps(trainer, 4, 8);
                      if (rank == 0) resumed = losses;
                    });
        CHECK((read_bytes(again) == read_bytes(file)));
        if (reading == writing) CHECK(resumed == after);
        REQUIRE(resumed.size() == after.size());
        const bool rounds = std::string(of.name) == "master weights";
        for (std::size_t i = 0; i < after.size(); ++i)
          CHECK(resumed[i] == doctest::Approx(after[i]).epsilon(rounds ? 1e-2 : 1e-4));
      }
    }
  }
}

TEST_CASE("ranks write shards and read them at another layout") {
  const TemporaryFolder folder;
  const auto settings = tiny_model("llama");
  const auto configuration = [&](const char* ranks) {
    return resolve(settings, {"backend=serial", std::string("parallel.data=") + ranks});
  };
  on_trainers(configuration("2"), [&](model::Trainer& trainer, const model::RankGroups&, std::int64_t) {
    model::save_checkpoint(folder / "saved", trainer, 4096);
  });
  CHECK(std::filesystem::exists(folder / "saved" / "model.safetensors.index.json"));
  on_trainers(configuration("3"), [&](model::Trainer& trainer, const model::RankGroups&, std::int64_t) {
    CHECK(model::load_checkpoint(folder / "saved", trainer).resumes);
  });
}

TEST_CASE("where the first rank cannot write all ranks are told, and the old checkpoint stays") {
  const TemporaryFolder folder;
  const auto file = folder / "old.safetensors";
  const auto configuration = resolve(tiny_model("llama"), {"backend=serial", "parallel.data=3"});
  on_trainers(configuration, [&](model::Trainer& trainer, const model::RankGroups&, std::int64_t) {
    model::save_checkpoint(file, trainer);
  });
  const auto before = read_bytes(file);
  // Another run is writing it.
  const model::AtomicFile busy(file);
  std::vector<std::string> sentences(3);
  on_trainers(configuration, [&](model::Trainer& trainer, const model::RankGroups&, std::int64_t rank) {
    try {
      model::save_checkpoint(file, trainer);
    } catch (const OutputFileError& error) {
      sentences[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  CHECK(sentences[0].find("another process is writing") != std::string::npos);
  for (const std::size_t rank : {1, 2})
    CHECK(sentences[rank] ==
          "rank 0 could not write the checkpoint '" + file.string() + "': its own error says why");
  CHECK((read_bytes(file) == before));
}

TEST_CASE("a rank that ends while a checkpoint is written leaves the old one, and no half of a new one") {
  const TemporaryFolder folder;
  const auto file = folder / "old.safetensors";
  const auto configuration =
      resolve(tiny_model("llama"), {"backend=serial", "parallel.data=3", "parallel.shard_optimizer=true"});
  on_trainers(configuration, [&](model::Trainer& trainer, const model::RankGroups&, std::int64_t) {
    model::save_checkpoint(file, trainer);
  });
  const auto before = read_bytes(file);
  std::vector<std::string> sentences(3);
  on_trainers(configuration,
              [&](model::Trainer& trainer, const model::RankGroups& groups, std::int64_t rank) {
                if (rank == 2) return groups.world->close();
                try {
                  model::save_checkpoint(file, trainer);
                } catch (const CommunicationError& error) {
                  sentences[static_cast<std::size_t>(rank)] = error.what();
                }
              });
  for (const std::size_t rank : {0, 1}) CHECK(sentences[rank].starts_with("rank 2 of "));
  CHECK((read_bytes(file) == before));
  CHECK(!std::filesystem::exists(folder / "old.safetensors.partial"));
}

TEST_CASE("a file that does not fit is refused on all ranks before anything changes") {
  const TemporaryFolder folder;
  const auto file = folder / "other.safetensors";
  model::save_checkpoint(file, *model::make_trainer(resolve(tiny_model("gpt2"), {"backend=serial"})));
  int refused = 0;
  std::mutex mutex;
  on_trainers(resolve(tiny_model("llama"), {"backend=serial", "parallel.data=2"}),
              [&](model::Trainer& trainer, const model::RankGroups&, std::int64_t) {
                const TrainingState state = state_of(trainer);
                CHECK_THROWS_AS(model::load_checkpoint(file, trainer), InputFileError);
                CHECK(state_of(trainer) == state);
                const std::lock_guard lock(mutex);
                ++refused;
              });
  CHECK(refused == 2);
}
