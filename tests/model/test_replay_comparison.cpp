// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/replay_comparison.hpp>

#include <memory>
#include <string>
#include <vector>

using namespace encore::model;

namespace {

std::unique_ptr<Trainer> tiny_trainer(const std::vector<std::string>& settings = {}) {
  ConfigurationSources sources;
  sources.json(R"({"model": {"family": "gpt2", "layers": 2, "hidden": 16, "heads": 2, "vocab": 32, "seq": 8,
                             "dropout": 0.1, "attention_dropout": 0.1},
                   "train": {"microbatch": 2, "microbatches": 2}, "graph": {"warmup_steps": 1},
                   "backend": "serial"})",
               "test");
  for (const std::string& setting : settings) sources.assignment(setting);
  return make_trainer(sources.resolve().configuration);
}

/// Tokens that follow from the step; `drift` is added to them.
StepInputs inputs(const std::int32_t& drift) {
  return {.set_batch =
              [&drift](std::int64_t done, Trainer& trainer) {
                std::vector<std::int32_t> ids(2 * 2 * 8), labels(ids.size());
                for (std::size_t i = 0; i < ids.size(); ++i) {
                  ids[i] =
                      static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(done * 5 + drift)) % 32);
                  labels[i] = (ids[i] * 3 + 1) % 32;
                }
                trainer.set_batch(ids, labels);
              },
          .learning_rate = [](std::int64_t done) { return 0.01 / static_cast<double>(done + 1); }};
}

std::vector<std::byte> all_bytes(Trainer& trainer) {
  std::vector<std::byte> bytes;
  for (const ParameterArray array : {ParameterArray::weights, ParameterArray::gradients,
                                     ParameterArray::first_moment, ParameterArray::second_moment})
    for (const ParameterSlice& slice : trainer.layout().slices()) {
      const auto part = trainer.read(array, slice);
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
  return bytes;
}

}  // namespace

TEST_CASE("eager and replayed steps are bit-identical, and comparing them changes nothing") {
  const std::int32_t drift = 0;
  for (const char* const policy :
       {"graph.impl=full_iteration", "graph.impl=layer", "graph.optimizer=separate"}) {
    CAPTURE(policy);
    const auto trainer = tiny_trainer({policy});
    const StepInputs given = inputs(drift);
    given.set_batch(0, *trainer);
    trainer->step(0.01);
    const auto bytes = all_bytes(*trainer);
    const auto positions = trainer->random_positions();

    const ReplayComparison comparison = compare_eager_with_replay(*trainer, 13, given);
    CHECK(comparison.difference == "");
    CHECK(comparison.identical());
    CHECK(comparison.steps == 13);
    CHECK(comparison.eager_milliseconds > 0);
    CHECK(comparison.replay_milliseconds > 0);
    CHECK(all_bytes(*trainer) == bytes);
    CHECK(trainer->random_positions() == positions);
    CHECK(trainer->steps_done() == 1);
  }
}

TEST_CASE("a difference between the two is found and named") {
  std::int32_t drift = 0;
  const auto trainer = tiny_trainer();
  StepInputs given = inputs(drift);
  const auto set_batch = given.set_batch;
  given.set_batch = [&](std::int64_t done, Trainer& trained) {
    ++drift;  // another batch at every call
    set_batch(done, trained);
  };
  const ReplayComparison comparison = compare_eager_with_replay(*trainer, 7, given);
  CHECK_FALSE(comparison.identical());
  CHECK(comparison.difference.find("the loss of step 1 is") == 0);
}

TEST_CASE("without graphs there is nothing to compare, for a reason") {
  const std::int32_t drift = 0;
  const auto trainer = tiny_trainer({"graph.impl=none"});
  const ReplayComparison comparison = compare_eager_with_replay(*trainer, 5, inputs(drift));
  CHECK(comparison.steps == 0);
  CHECK_FALSE(comparison.identical());
  CHECK(comparison.why_not == "graph.impl is none");
}
