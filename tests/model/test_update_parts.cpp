// SPDX-License-Identifier: Apache-2.0
// Weights updated in parts, where nothing needs the gradient's norm first.
#include "step_traces.hpp"

#include <encore/backend/error.hpp>

#include <doctest/doctest.h>

namespace {

using namespace encore;
using namespace encore::tests;

std::vector<std::string> updates_of(const model::Trainer& trainer) {
  std::vector<std::string> names;
  for (const graph::Segment& segment : trainer.outline().segments())
    if (segment.name.starts_with("optimizer/adamw")) names.push_back(segment.name);
  return names;
}

/// Large enough for several parts.
std::vector<std::string> wide_model() {
  auto settings = tiny_model("llama");
  for (const char* setting : {"model.layers=4", "model.hidden=64", "model.heads=4", "model.ffn=256",
                              "model.vocab=512", "model.seq=8", "train.microbatch=1"})
    settings.emplace_back(setting);
  return settings;
}

TEST_CASE("weights are updated in parts where nothing clips or skips, and at once where something does") {
  const auto parts = [](const char* setting) {
    return updates_of(*model::make_trainer(resolve(wide_model(), {"backend=serial", setting}))).size();
  };
  CHECK(parts("train.clip=0") > 3);
  CHECK(parts("train.clip=1") == 1);
  CHECK(parts("train.skip_above=1") == 1);
}

TEST_CASE("an update in parts gives the weights and the gradient norm of one update, under every policy") {
  for (const std::string& backend : backend_names())
    for (const char* decay : {"train.decay_all=true", "train.decay_all=false"}) {
      CAPTURE(backend);
      CAPTURE(decay);
      const auto trace = [&](std::vector<std::string> more) {
        for (const std::string& setting : {"backend=" + backend, std::string(decay)}) more.push_back(setting);
        return trace_steps(resolve(wide_model(), more), 4);
      };
      // Clipping that never does anything.
      const StepTrace whole = trace({"graph.impl=none", "train.clip=1e30"});
      const StepTrace parts = trace({"graph.impl=none", "train.clip=0"});
      REQUIRE(whole.gradient_norms.size() == parts.gradient_norms.size());
      for (std::size_t i = 0; i < whole.gradient_norms.size(); ++i)
        CHECK(parts.gradient_norms[i] == doctest::Approx(whole.gradient_norms[i]).epsilon(1e-6));
      CHECK(parts.losses == whole.losses);
      CHECK((parts.weights == whole.weights));
      CHECK((parts.gradients == whole.gradients));
      for (const char* optimizer :
           {"graph.optimizer=joined", "graph.optimizer=separate", "graph.optimizer=eager"}) {
        CAPTURE(optimizer);
        CHECK(first_difference(trace({"graph.impl=full_iteration", optimizer, "train.clip=0"}), parts) == "");
      }
      CHECK(first_difference(trace({"graph.impl=layer", "train.clip=0"}), parts) == "");
    }
}

TEST_CASE("a limit that the step was built without cannot be set later") {
  const auto trainer = model::make_trainer(resolve(tiny_model("llama"), {"backend=serial", "train.clip=0"}));
  CHECK_THROWS_WITH_AS(trainer->set_scalar("clip", 1.0), doctest::Contains("train.clip"),
                       ReplayContractError);
  CHECK_THROWS_WITH_AS(trainer->set_scalar("skip_above", 1.0), doctest::Contains("train.skip_above"),
                       ReplayContractError);
}

}  // namespace
