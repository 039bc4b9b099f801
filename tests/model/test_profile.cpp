// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <encore/model/trainer.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "trainers.hpp"

using namespace encore;
using namespace encore::model;

namespace {

constexpr graph::MachineRates made_up_rates{1e12, 1e11, 1e-6};

graph::ProfileOptions quick() {
  graph::ProfileOptions options;
  options.rates = made_up_rates;
  options.samples = 3;
  options.sample_milliseconds = 0.02;
  options.step_samples = 2;
  return options;
}

void set_batch(Trainer& trainer) {
  const tests::Batch batch = tests::random_batch(trainer.configuration(), trainer.steps_done());
  trainer.set_batch(batch.ids, batch.labels);
}

void step(Trainer& trainer) {
  set_batch(trainer);
  trainer.step(0.01);
}

}  // namespace

TEST_CASE("a profile between two steps changes no bit of weights, gradients, moments and random positions") {
  const std::vector<std::vector<std::string>> models{tests::tiny_model("llama"), tests::tiny_hybrid()};
  for (const std::string& backend : tests::backend_names())
    for (const auto& model : models) {
      CAPTURE(backend);
      const auto configuration =
          tests::resolve(model, {"backend=" + backend, "model.dropout=0.1", "train.microbatches=2"});
      const auto profiled = make_trainer(configuration), plain = make_trainer(configuration);
      for (int i = 0; i < 5; ++i) {
        step(*profiled);
        step(*plain);
        if (i % 2 == 1) continue;
        const auto before = profiled->save_state();
        set_batch(*profiled);
        const graph::StepProfile result = profiled->profile(0.01, quick());
        CHECK(profiled->save_state()->same_as(*before));
        CHECK(result.segments.size() == profiled->outline().segments().size());
        for (const graph::SegmentProfile& segment : result.segments) CHECK(segment.eager_because == "");
      }
      CHECK(profiled->save_state()->checksums == plain->save_state()->checksums);
      CHECK(profiled->random_positions() == plain->random_positions());
      CHECK(profiled->steps_done() == 5);
    }
}

TEST_CASE(
    "the products of a profile are six floating-point operations a parameter and token, and attention's") {
  const auto configuration = tests::resolve(tests::tiny_model("llama"), {"backend=serial"});
  const auto trainer = make_trainer(configuration);
  set_batch(*trainer);
  const graph::StepProfile result = trainer->profile(0.01, quick());
  double products = 0, attention = 0;
  for (const graph::SegmentProfile& segment : result.segments)
    for (const graph::LaunchProfile& launch : segment.launches) {
      // Attention's kernels are the backend's own.
      const bool own = launch.label.starts_with("attention ");
      (own ? attention : products) += launch.flops;
    }
  const double tokens = 2 * 16, hidden = 32, layers = 2, heads = 4, head_dim = 8, pairs = 16 * 17 / 2;
  const double layer = hidden * (4 + 2 * 2) * head_dim + hidden * hidden + 3 * hidden * 64;
  const double weights = layers * layer + hidden * 61;
  CHECK(products == doctest::Approx(6 * weights * tokens));
  CHECK(attention == doctest::Approx(layers * 7 * 2 * head_dim * pairs * 2 * heads));
}
