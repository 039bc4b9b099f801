// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <encore/backend/error.hpp>
#include <encore/backend/space.hpp>
#include <encore/model/memory_forecast.hpp>
#include <encore/model/trainer.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "trainers.hpp"

using namespace encore;
using namespace encore::model;
using encore::tests::backend_names;
using encore::tests::tiny_model;

namespace {

/// What Kokkos has allocated in one memory space, beyond what there was at first, by its tools' callbacks.
class AllocationMeter {
 public:
  explicit AllocationMeter(BackendKind backend) {
    space_ = Kokkos::HostSpace::name();
#if defined(KOKKOS_ENABLE_CUDA)
    if (backend == BackendKind::cuda) space_ = Kokkos::CudaSpace::name();
#else
    (void)backend;
#endif
    now_ = 0;
    namespace Tools = Kokkos::Tools::Experimental;
    before_ = Tools::get_callbacks();
    Tools::set_allocate_data_callback(
        [](Kokkos_Profiling_SpaceHandle handle, const char*, const void*, std::uint64_t bytes) {
          if (space_ == handle.name) now_ += static_cast<std::int64_t>(bytes);
        });
    Tools::set_deallocate_data_callback(
        [](Kokkos_Profiling_SpaceHandle handle, const char*, const void*, std::uint64_t bytes) {
          if (space_ == handle.name) now_ -= static_cast<std::int64_t>(bytes);
        });
  }
  ~AllocationMeter() { Kokkos::Tools::Experimental::set_callbacks(before_); }
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  static double bytes() { return static_cast<double>(now_); }

 private:
  static inline std::string space_;
  static inline std::int64_t now_ = 0;
  Kokkos::Tools::Experimental::EventSet before_;
};

void train(Trainer& trainer, int steps) {
  for (int step = 0; step < steps; ++step) {
    const auto batch = tests::random_batch(trainer.configuration(), step);
    trainer.set_batch(batch.ids, batch.labels);
    trainer.step(0.01);
  }
}

void check_forecast(const Configuration& configuration) {
  const AllocationMeter meter(configuration.backend);
  const MemoryForecast forecast = forecast_memory(configuration);
  CHECK(AllocationMeter::bytes() == 0);  // nothing is left of the forecast itself
  const auto trainer = make_trainer(configuration);
  train(*trainer, 3);
  CHECK(AllocationMeter::bytes() == doctest::Approx(static_cast<double>(forecast.allocated())).epsilon(0.01));
}

/// The sentence of the refusal; empty when there was none.
std::string refusal_of(const Configuration& configuration) {
  try {
    make_trainer(configuration);
  } catch (const OutOfMemoryError& error) {
    return error.what();
  }
  return {};
}

Configuration limited(Configuration configuration, std::size_t bytes) {
  configuration.graph.memory_limit = static_cast<std::int64_t>(bytes);
  return configuration;
}

bool holds(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the forecast is what is then used, over layers, microbatches and policies") {
  for (const std::string& backend : backend_names())
    for (const char* const layers : {"1", "2", "6"})
      for (const char* const microbatches : {"1", "2", "8"})
        for (const char* const policy : {"none", "layer", "full_iteration"}) {
          CAPTURE(backend);
          CAPTURE(layers);
          CAPTURE(microbatches);
          CAPTURE(policy);
          check_forecast(tests::resolve(
              tiny_model("llama"),
              {"backend=" + backend, std::string("model.layers=") + layers, "graph.warmup_steps=1",
               std::string("train.microbatches=") + microbatches, std::string("graph.impl=") + policy}));
        }
}

TEST_CASE(
    "the forecast is what is then used, over pipelines, microbatches in flight, recompute and delayed "
    "gradients") {
  for (const std::string& backend : backend_names())
    for (const char* const pipeline : {"1", "2", "4"})
      for (const char* const chunks : {"1", "2"})
        for (const char* const microbatches : {"4", "8"})
          for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
                   {}, {"train.recompute=full"}, {"train.recompute=attn", "train.delay_wgrad=true"}}) {
            if (*pipeline == '1' && *chunks == '2') continue;
            CAPTURE(backend);
            CAPTURE(pipeline);
            CAPTURE(chunks);
            CAPTURE(microbatches);
            auto settings = more;
            settings.insert(
                settings.end(),
                {"backend=" + backend, "model.layers=8", std::string("parallel.pipeline=") + pipeline,
                 std::string("parallel.virtual_stages=") + chunks, "graph.warmup_steps=1",
                 std::string("train.microbatches=") + microbatches});
            check_forecast(tests::resolve(tiny_model("llama"), settings));
          }
}

TEST_CASE(
    "case 25: one, four or sixteen buckets share one pool, which is forecast once, as are boundary "
    "checksums") {
  for (const std::string& backend : backend_names())
    for (const char* const setting : {"graph.buckets=16", "graph.buckets=4,8,12,16",
                                      "graph.buckets=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16",
                                      "graph.buckets=5,11", "graph.checksums=true"}) {
      CAPTURE(backend);
      CAPTURE(setting);
      check_forecast(
          tests::resolve(tiny_model("llama"), {"backend=" + backend, "graph.recordings=16", setting}));
    }
}

TEST_CASE("the forecast knows families, types, master weights and dropout") {
  for (const std::string& backend : backend_names())
    for (const char* const family : {"llama", "gpt2"})
      for (const std::vector<std::string>& types : std::vector<std::vector<std::string>>{
               {"train.precision=bf16"},
               {"train.precision=bf16", "train.gradient_type=fp32", "train.optimizer_state=bf16"},
               {"train.precision=bf16", "train.master_weights=false"},
               {"model.dropout=0.1", "model.attention_dropout=0.1"}}) {
        CAPTURE(backend);
        CAPTURE(family);
        auto settings = types;
        settings.push_back("backend=" + backend);
        check_forecast(tests::resolve(tiny_model(family), settings));
      }
}

TEST_CASE("the evaluation program is forecast too") {
  for (const std::string& backend : backend_names()) {
    CAPTURE(backend);
    const Configuration configuration = tests::resolve(tiny_model("llama"), {"backend=" + backend});
    const AllocationMeter meter(configuration.backend);
    const MemoryForecast forecast = forecast_memory(configuration, ForecastEvaluation::include);
    const auto trainer = make_trainer(configuration);
    train(*trainer, 1);
    const auto batch = tests::random_batch(configuration, 0);
    trainer->evaluate(batch.ids, batch.labels);
    CHECK(AllocationMeter::bytes() ==
          doctest::Approx(static_cast<double>(forecast.allocated())).epsilon(0.01));
    CHECK(forecast[MemoryUse::evaluation] > 0);
  }
}

TEST_CASE(
    "without graphs none are forecast, and with more of the step recorded a device needs more for them") {
  for (const std::string& backend : backend_names()) {
    const auto graphs = [&](const char* policy) {
      return forecast_memory(
          tests::resolve(tiny_model("llama"),
                         {"backend=" + backend, std::string("graph.impl=") + policy}))[MemoryUse::graphs];
    };
    const bool device = backend == "cuda";
    CHECK(graphs("none") == 0);
    CHECK((graphs("layer") > 0) == device);
    CHECK((graphs("full_iteration") > graphs("layer")) == device);
  }
}

TEST_CASE("a memory limit is kept exactly: what is forecast is allowed, a byte less is refused") {
  const Configuration configuration = tests::resolve(tiny_model("llama"));
  const std::size_t needed = forecast_memory(configuration).total();
  CHECK(refusal_of(limited(configuration, needed)).empty());
  CHECK(holds(refusal_of(limited(configuration, needed - 1)), "R-08: training needs "));
}

TEST_CASE(
    "a limit below the need is refused before anything is allocated or recorded, with a policy that fits") {
  const Configuration configuration = tests::resolve(
      tiny_model("llama"), {"train.microbatch=8", "model.seq=64", "graph.impl=full_iteration"});
  const auto policies = smaller_policies(configuration);
  REQUIRE(policies.size() >= 4);
  std::size_t least = forecast_memory(configuration).total();
  for (const SmallerPolicy& policy : policies) {
    CAPTURE(policy.change);
    const std::size_t needed = forecast_memory(policy.configuration).total();
    if (needed >= least) continue;  // an earlier change fits wherever this one does
    least = needed;
    const AllocationMeter meter(configuration.backend);
    const std::string refusal = refusal_of(limited(configuration, needed));
    CHECK(AllocationMeter::bytes() == 0);
    CHECK_MESSAGE(holds(refusal, ": " + policy.change + " would fit, with "), refusal);
    CHECK_MESSAGE(holds(refusal, "graph.memory_limit allows "), refusal);
    // And it is true.
    CHECK(refusal_of(limited(policy.configuration, needed)).empty());
  }
  const std::string none = refusal_of(limited(configuration, least - 1));
  CHECK_MESSAGE(holds(none, "no change of policy fits, the least is "), none);
  CHECK_MESSAGE(holds(none, "raise the limit or make the model smaller"), none);
}

TEST_CASE("a smaller policy trains on as many tokens, and every one is valid") {
  const Configuration configuration = tests::resolve(tiny_model("llama"), {"train.microbatch=12"});
  for (const SmallerPolicy& policy : smaller_policies(configuration)) {
    CAPTURE(policy.change);
    CHECK_NOTHROW(check(policy.configuration));
    CHECK(policy.configuration.train.microbatch * policy.configuration.train.microbatches == 12);
    CHECK(policy.configuration != configuration);
  }
}

TEST_CASE("a model that is far too large is refused within a second, without a plan") {
  const Configuration configuration = tests::resolve(
      tiny_model("llama"), {"model.layers=5000", "model.hidden=16384", "model.heads=128", "model.kv_heads=8",
                            "train.microbatches=20", "graph.memory_limit=1GiB"});
  const auto start = std::chrono::steady_clock::now();
  const std::string refusal = refusal_of(configuration);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  CHECK_MESSAGE(holds(refusal, "weights, gradients and optimizer state alone need "), refusal);
  CHECK(holds(refusal, "graph.memory_limit allows 1.00 GiB"));
}

TEST_CASE("what parameters need at least is below the forecast, and not by much for a large vocabulary") {
  for (const char* const types : {"train.precision=fp32", "train.precision=bf16"}) {
    const Configuration configuration = tests::resolve(tiny_model("llama"), {types, "model.vocab=50000"});
    const MemoryForecast forecast = forecast_memory(configuration);
    const std::size_t parameters =
        forecast[MemoryUse::parameter] + forecast[MemoryUse::gradient] + forecast[MemoryUse::optimizer_state];
    CHECK(least_memory(configuration) <= parameters);
    CHECK(static_cast<double>(least_memory(configuration)) > 0.98 * static_cast<double>(parameters));
  }
}

TEST_CASE("the plan of a step names the kernels that then run") {
  for (const std::string& backend : backend_names()) {
    CAPTURE(backend);
    const Configuration configuration = tests::resolve(
        tiny_model("llama"), {"backend=" + backend, "graph.warmup_steps=0", "model.dropout=0.1"});
    const StepPlan plan = plan_step(configuration, KernelLabels::collect);
    REQUIRE(plan.kernels.size() == plan.outline.segments().size());
    std::size_t kernels = 0;
    for (const auto& labels : plan.kernels) kernels += labels.size();
    const auto trainer = make_trainer(configuration);
    CHECK(plan.outline.signature() == trainer->outline().signature());
    const auto batch = tests::random_batch(configuration, 0);
    trainer->set_batch(batch.ids, batch.labels);
    CHECK(trainer->step_eagerly(0.01).report.eager_launches == kernels);
    CHECK(captured_kernels(plan.runs, plan.kernels) == kernels);
  }
}
