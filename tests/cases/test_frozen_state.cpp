// SPDX-License-Identifier: Apache-2.0
// Section B of the public complaints about graph capture: state that a capture froze.
#include <encore/backend/error.hpp>
#include <encore/graph/executor.hpp>
#include <encore/kernels/dropout.hpp>
#include <encore/model/files/learning_rate.hpp>

#include "chain_program.hpp"
#include "trainers.hpp"

#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

using namespace encore;
using namespace encore::tests;
using encore::graph::BufferKind;
using encore::graph::CapturePolicy;
using encore::graph::CaptureScope;
using encore::graph::Executor;
using encore::graph::OptimizerCapture;

namespace {

const CapturePolicy whole{CaptureScope::full_iteration, {}, OptimizerCapture::joined, 0};
const std::vector<std::string> captured_at_once{"graph.impl=full_iteration", "graph.warmup_steps=0"};

std::vector<std::string> with(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::unique_ptr<model::Trainer> tiny_trainer(const std::string& backend,
                                             const std::vector<std::string>& more) {
  return model::make_trainer(resolve(tiny_model("llama"), with({"backend=" + backend}, more)));
}

model::StepResult train(model::Trainer& trainer, std::int64_t step, double rate) {
  const Batch batch = random_batch(trainer.configuration(), step);
  trainer.set_batch(batch.ids, batch.labels);
  return trainer.step(rate);
}

}  // namespace

TEST_CASE(
    "case 9: a schedule of warm-up and cosine, AdamW's step number, and every other scalar follow each "
    "replayed step") {
  for (const std::string& backend : backend_names()) {
    const auto graph = tiny_trainer(backend, captured_at_once);
    const auto eager = tiny_trainer(backend, {"graph.impl=none"});
    const auto constant = tiny_trainer(backend, captured_at_once);
    const model::LearningRateSchedule schedule{
        .peak = 0.02, .floor = 0.001, .warmup_steps = 4, .decay_steps = 12};
    for (std::int64_t step = 0; step < 12; ++step) {
      const double rate = model::learning_rate(schedule, step);
      if (step == 6) {
        for (auto* trainer : {graph.get(), eager.get()}) {
          trainer->set_scalar("weight_decay", 0.3);
          trainer->set_scalar("clip", 0.05);
          trainer->set_scalar("beta1", 0.8);
        }
      }
      const auto one = train(*graph, step, rate), other = train(*eager, step, rate);
      train(*constant, step, 0.02);
      CHECK(one.report.mode == (step == 0 ? graph::StepMode::capture : graph::StepMode::replay));
      CHECK(one.loss == other.loss);
      CHECK(state_of(*graph) == state_of(*eager));
      if (step > 0) CHECK_FALSE(state_of(*graph) == state_of(*constant));
    }
    CHECK_THROWS_AS(graph->set_scalar("norm_epsilon", 1.0), ReplayContractError);
    CHECK_THROWS_AS(graph->set_scalar("dropout", 0.5), ReplayContractError);
    CHECK_THROWS_AS(graph->set_scalar("wheight_decay", 0.5), ReplayContractError);
    CHECK_THROWS_AS(graph->set_scalar("learning_rate", 0.5), ReplayContractError);
    CHECK_THROWS_AS(graph->set_scalar("step", 1), ReplayContractError);
    for (const auto& [name, value] : std::vector<std::pair<const char*, double>>{
             {"clip", std::nan("")}, {"beta1", 1.0}, {"beta2", -0.1}, {"weight_decay", INFINITY}})
      CHECK_THROWS_AS(graph->set_scalar(name, value), ConfigurationError);
    CHECK(state_of(*graph) == state_of(*eager));
  }
}

TEST_CASE_TEMPLATE(
    "case 10: each replay drops out others, the same as eager steps from the same seed, and ends at the same "
    "position",
    Space, ENCORE_TEST_SPACES) {
  constexpr std::int64_t rows = 16, columns = 32;
  std::vector<std::vector<std::vector<double>>> masks;
  std::vector<std::uint64_t> positions;
  for (const CapturePolicy& policy : {CapturePolicy{}, whole}) {
    backend::Device<Space> device(11);
    graph::Scalars<Space> scalars(device.stream(), {"dropout"});
    scalars.set("dropout", 0.5);
    scalars.upload(device.stream());
    graph::Program<Space> program;
    const auto ones =
        program.add_buffer({"ones", backend::DataType::float32, {rows, columns}, BufferKind::input});
    const auto mask =
        program.add_buffer({"mask", backend::DataType::float32, {rows, columns}, BufferKind::metric});
    const auto probability =
        program.add_buffer({"dropout", backend::DataType::float64, {1}, BufferKind::scalar});
    program.add_segment(
        {"dropout", graph::Module::embedding, graph::Phase::forward, -1, 0, {ones, probability}, {mask}},
        [=](graph::Execution<Space>& x) {
          kernels::dropout_forward<Space, float>(
              x.stream(), x.template matrix<const float>(ones), {}, x.template matrix<float>(mask),
              x.template pointer<const double>(probability), x.device().random().state("default"), 0);
        });
    program.add_segment({"advance", graph::Module::random, graph::Phase::update, -1, -1, {}, {}},
                        [](graph::Execution<Space>& x) { x.device().random().advance(x.stream()); });
    TestArray<Space, float> source(device.stream(), std::vector<float>(rows * columns, 1.0F));
    TestArray<Space, float> result(device.stream(), std::vector<float>(rows * columns, -1.0F));
    graph::Bindings bindings(program.outline());
    bindings.bind(ones, reinterpret_cast<std::byte*>(source.data()));
    bindings.bind(mask, reinterpret_cast<std::byte*>(result.data()));
    bindings.bind(probability, scalars.device_data());
    Executor<Space> executor(device, program, bindings, policy);
    masks.emplace_back();
    for (int step = 0; step < 5; ++step) {
      executor.step();
      const auto values = result.get();
      masks.back().emplace_back(values.begin(), values.end());
    }
    positions.push_back(device.random().snapshot(device.stream())[0].offset);
  }
  CHECK(std::set<std::vector<double>>(masks[1].begin(), masks[1].end()).size() == 5);
  CHECK(masks[0] == masks[1]);
  CHECK(positions[0] == 5);
  CHECK(positions[1] == 5);
}

TEST_CASE(
    "case 11: a whole iteration with noise on its input and on every branch draws what eager steps draw") {
  for (const std::string& backend : backend_names()) {
    const std::vector<std::string> noisy{"model.dropout=0.2", "model.attention_dropout=0.2",
                                         "train.microbatches=3"};
    const auto graph = tiny_trainer(backend, with(captured_at_once, noisy));
    const auto eager = tiny_trainer(backend, with({"graph.impl=none"}, noisy));
    std::set<double> losses;
    for (std::int64_t step = 0; step < 20; ++step) {
      const double one = train(*graph, 0, 0.0).loss;
      CHECK(one == train(*eager, 0, 0.0).loss);
      losses.insert(one);
    }
    CHECK(losses.size() == 20);  // the weights did not move, the noise did
    CHECK(graph->random_positions() == eager->random_positions());
  }
}

TEST_CASE("case 12: what was captured in one precision leaves no trace on what runs in another") {
  for (const std::string& backend : backend_names()) {
    const auto never = tiny_trainer(backend, {"graph.impl=none"});
    std::vector<double> expected;
    for (std::int64_t step = 0; step < 4; ++step) expected.push_back(train(*never, step, 0.01).loss);
    const auto low = tiny_trainer(backend, with(captured_at_once, {"train.precision=bf16"}));
    const auto high = tiny_trainer(backend, captured_at_once);
    for (std::int64_t step = 0; step < 4; ++step) {
      train(*low, step, 0.01);
      const Batch batch = random_batch(high->configuration(), step);
      high->set_batch(batch.ids, batch.labels);
      // Captured once, then eager: the same model object both ways.
      CHECK((step == 0 ? high->step(0.01) : high->step_eagerly(0.01)).loss ==
            expected[static_cast<std::size_t>(step)]);
    }
  }
}

TEST_CASE(
    "case 13: weights loaded before a capture and weights loaded into a captured model are both what replays "
    "use") {
  for (const std::string& backend : backend_names()) {
    const auto source = tiny_trainer(backend, {"graph.impl=none"});
    for (std::int64_t step = 0; step < 5; ++step) train(*source, step, 0.02);
    const auto load = [&](model::Trainer& trainer) {
      using enum model::ParameterArray;
      for (const auto array : {weights, first_moment, second_moment})
        for (const auto& slice : trainer.layout().slices())
          trainer.write(array, slice, source->read(array, slice));
      trainer.restore(source->steps_done(), source->random_positions());
    };
    const auto before = tiny_trainer(backend, captured_at_once),
               after = tiny_trainer(backend, captured_at_once);
    load(*before);
    for (std::int64_t step = 0; step < 3; ++step) train(*after, step, 0.01);
    load(*after);
    for (std::int64_t step = 5; step < 9; ++step) {
      const double expected = train(*source, step, 0.02).loss;
      CHECK(train(*before, step, 0.02).loss == expected);
      const auto result = train(*after, step, 0.02);
      CHECK(result.loss == expected);
      CHECK(result.report.mode == graph::StepMode::replay);
    }
    CHECK(state_of(*before) == state_of(*source));
    CHECK(state_of(*after) == state_of(*source));
  }
}

TEST_CASE_TEMPLATE(
    "case 14: a buffer that is made anew elsewhere every fifth step is found on the step on which it moves",
    Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 3);
  Executor<Space> executor(device, chain.program, chain.bindings(), whole);
  CapturePolicy recaptures = whole;
  recaptures.recapture = true;
  ChainProgram<Space> other(device, 3);
  Executor<Space> follower(device, other.program, other.bindings(), recaptures);
  std::vector<TestArray<Space, double>> gathered;
  gathered.reserve(20);
  for (int step = 0; step < 20; ++step) {
    if (step > 0 && step % 5 == 0) {
      gathered.emplace_back(device.stream(), std::vector<double>(37, step));
      auto* address = reinterpret_cast<std::byte*>(gathered.back().data());
      executor.rebind(chain.input, address);
      follower.rebind(other.input, address);
      CHECK_THROWS_AS(executor.step(), ReplayContractError);
      CHECK(follower.step().captures == 1);
      executor.recapture();
    } else {
      CHECK(follower.step().captures == (step == 0 ? 1 : 0));
    }
    executor.step();
    const double expected = ChainProgram<Space>::expected_output(step < 5 ? 1.0 : step - step % 5, 0.0, 3);
    CHECK(chain.output_values()[0] == expected);
    CHECK(other.output_values()[0] == expected);
  }
}

namespace {

/// Each token's expert is its value modulo the experts; counts and the load-balancing loss E * sum(f_e^2) gather over
/// microbatches.
struct Route {
  const std::int32_t* tokens;
  std::int64_t count;
  std::int64_t experts;
  std::int64_t* counts;  ///< [experts]
  double* auxiliary_loss;
  bool first;
  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    for (std::int64_t e = 0; e < experts && first; ++e) counts[e] = 0;
    if (first) *auxiliary_loss = 0;
    double squares = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      std::int64_t mine = 0;
      for (std::int64_t t = 0; t < count; ++t) mine += tokens[t] % experts == e;
      counts[e] += mine;
      const double share = static_cast<double>(mine) / static_cast<double>(count);
      squares += share * share;
    }
    *auxiliary_loss += static_cast<double>(experts) * squares;
  }
};

}  // namespace

TEST_CASE(
    "case 15: balancing loss and token counts of a mixture of experts over 4 microbatches are the eager "
    "run's") {
  for (const std::string& backend : backend_names()) {
    const std::vector<std::string> settings{"backend=" + backend, "train.microbatches=4",
                                            "train.balance_loss=0.02", "train.router_z_loss=0.01"};
    const auto metrics = [&](const std::string& policy) {
      const auto configuration = resolve(tiny_experts(), settings);
      auto with_policy = settings;
      with_policy.push_back(policy);
      const auto trainer = model::make_trainer(resolve(tiny_experts(), with_policy));
      std::vector<std::tuple<double, double, std::vector<std::int32_t>>> rows;
      for (std::int64_t step = 0; step < 12; ++step) {
        const Batch batch = random_batch(configuration, step);
        trainer->set_batch(batch.ids, batch.labels);
        const auto result = trainer->step(0.01);
        rows.emplace_back(result.balance_loss, result.router_z_loss, trainer->tokens_of_experts());
      }
      return rows;
    };
    const auto eager = metrics("graph.impl=none");
    for (const char* policy : {"graph.impl=full_iteration", "graph.impl=layer"})
      CHECK(metrics(policy) == eager);
    const auto& [balance, z, counts] = eager.back();
    CHECK(balance >= 0.9);
    CHECK(z > 0);
    CHECK(std::accumulate(counts.begin(), counts.end(), 0) == 4 * 2 * 16 * 2);
  }
}

TEST_CASE_TEMPLATE(
    "case 15: side metrics that gather over microbatches, token counts and a balancing loss, are those of "
    "eager steps",
    Space, ENCORE_TEST_SPACES) {
  constexpr std::int64_t experts = 4, tokens = 24, microbatches = 4;
  std::vector<std::vector<double>> logged;
  for (const CapturePolicy& policy :
       {CapturePolicy{}, whole, CapturePolicy{CaptureScope::layer, {}, OptimizerCapture::separate, 0}}) {
    backend::Device<Space> device(1);
    graph::Program<Space> program;
    const auto ids =
        program.add_buffer({"ids", backend::DataType::int32, {microbatches, tokens}, BufferKind::input});
    const auto counts =
        program.add_buffer({"router/counts", backend::DataType::int64, {experts}, BufferKind::metric});
    const auto loss =
        program.add_buffer({"router/balancing_loss", backend::DataType::float64, {1}, BufferKind::metric});
    for (std::int64_t m = 0; m < microbatches; ++m)
      program.add_segment({"microbatch." + std::to_string(m) + "/layer.0/moe_router/forward",
                           graph::Module::moe_router,
                           graph::Phase::forward,
                           0,
                           static_cast<std::int32_t>(m),
                           {ids, counts, loss},
                           {counts, loss}},
                          [=](graph::Execution<Space>& x) {
                            backend::launch(x.stream(), "test::route", {}, backend::Range{1},
                                            Route{x.template pointer<const std::int32_t>(ids) + m * tokens,
                                                  tokens, experts, x.template pointer<std::int64_t>(counts),
                                                  x.template pointer<double>(loss), m == 0});
                          });
    TestArray<Space, std::int32_t> input(device.stream(), std::vector<std::int32_t>(microbatches * tokens));
    TestArray<Space, std::int64_t> counted(device.stream(), std::vector<std::int64_t>(experts, -7));
    TestArray<Space, double> balancing(device.stream(), {-7.0});
    graph::Bindings bindings(program.outline());
    bindings.bind(ids, reinterpret_cast<std::byte*>(input.data()));
    bindings.bind(counts, reinterpret_cast<std::byte*>(counted.data()));
    bindings.bind(loss, reinterpret_cast<std::byte*>(balancing.data()));
    Executor<Space> executor(device, program, bindings, policy);
    logged.emplace_back();
    std::mt19937 generator(5);
    for (int step = 0; step < 10; ++step) {
      std::vector<std::int32_t> values(microbatches * tokens);
      for (auto& value : values) value = static_cast<std::int32_t>(generator() % 97);
      input.set(values);
      executor.step();
      std::int64_t all = 0;
      for (const std::int64_t count : counted.get()) {
        logged.back().push_back(static_cast<double>(count));
        all += count;
      }
      CHECK(all == microbatches * tokens);
      logged.back().push_back(balancing.get()[0]);
    }
  }
  CHECK(logged[0] == logged[1]);
  CHECK(logged[0] == logged[2]);
}
