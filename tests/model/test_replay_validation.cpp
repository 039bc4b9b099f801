// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include "trainers.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace {

using namespace encore;
using namespace encore::tests;

std::unique_ptr<model::Trainer> make(const std::string& backend, std::vector<std::string> more) {
  more.push_back("backend=" + backend);
  more.push_back("model.dropout=0.1");
  more.push_back("train.microbatches=2");
  return model::make_trainer(resolve(tiny_model("llama"), more));
}

model::StepResult train(model::Trainer& trainer, std::int64_t step, double rate = 0.01) {
  const Batch batch = random_batch(trainer.configuration(), step);
  trainer.set_batch(batch.ids, batch.labels);
  return trainer.step(rate);
}

TEST_CASE(
    "validated steps are the same steps: every N-th replay is compared, and training goes on as without") {
  for (const std::string& backend : backend_names())
    for (const char* impl : {"graph.impl=full_iteration", "graph.impl=layer"})
      for (const char* checksums : {"graph.checksums=true", "graph.checksums=false"}) {
        const auto validated =
            make(backend, {impl, checksums, "graph.validate_every=3", "graph.warmup_steps=1"});
        const auto plain = make(backend, {impl, "graph.warmup_steps=1"});
        for (std::int64_t step = 0; step < 10; ++step) {
          const auto one = train(*validated, step), other = train(*plain, step);
          CHECK(one.loss == other.loss);
          CHECK(one.validated == (step % 3 == 2));
          CHECK(one.report.host_syncs == 0);
        }
        CHECK(state_of(*validated) == state_of(*plain));
        CHECK(validated->steps_done() == 10);
      }
}

TEST_CASE("checksums change no number, and name the first segment that wrote something not finite") {
  for (const std::string& backend : backend_names()) {
    const auto checked = make(backend, {"graph.checksums=true", "graph.warmup_steps=0"});
    const auto plain = make(backend, {"graph.warmup_steps=0"});
    CHECK(checked->first_bad_boundary().empty());
    for (std::int64_t step = 0; step < 3; ++step) {
      CHECK(train(*checked, step).loss == train(*plain, step).loss);
      CHECK(checked->first_bad_boundary().empty());
    }
    CHECK(state_of(*checked) == state_of(*plain));
    // One weight of the second layer's MLP becomes infinite.
    const auto slices = checked->layout().slices();
    const auto slice = std::ranges::find_if(slices, [](const auto& each) {
      return each.name.find("layers.1.mlp.down_proj") != std::string::npos;
    });
    REQUIRE(slice != slices.end());
    std::vector<float> values(static_cast<std::size_t>(slice->elements()), INFINITY);
    checked->set_weights(*slice, values);
    CHECK(!std::isfinite(train(*checked, 3).loss));
    CHECK(checked->first_bad_boundary().starts_with("segment 'microbatch.0/layer.1/mlp/forward' wrote "));
    CHECK(plain->first_bad_boundary().empty());
  }
}

}  // namespace
