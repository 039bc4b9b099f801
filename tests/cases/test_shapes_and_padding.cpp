// SPDX-License-Identifier: Apache-2.0
// Section D of the public complaints about graph capture: shapes, padding, keys.
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/graph/executor.hpp>

#include "spaces.hpp"
#include "trainers.hpp"

#include <cmath>
#include <numeric>

using namespace encore;
using namespace encore::tests;
using encore::graph::BufferId;
using encore::graph::BufferKind;
using encore::graph::CapturePolicy;
using encore::graph::CaptureScope;
using encore::graph::Execution;
using encore::graph::Executor;
using encore::graph::OptimizerCapture;

namespace {

const CapturePolicy whole{CaptureScope::full_iteration, {}, OptimizerCapture::joined, 0};

/// A batch whose sequences are the first `tokens` of longer ones.
Batch short_batch(const model::Configuration& configuration, std::int64_t step, std::int64_t tokens) {
  const Batch full = random_batch(configuration, step);
  Batch batch;
  for (std::size_t row = 0; row * 16 < full.ids.size(); ++row)
    for (std::int64_t t = 0; t < tokens; ++t) {
      batch.ids.push_back(full.ids[row * 16 + static_cast<std::size_t>(t)]);
      batch.labels.push_back(full.labels[row * 16 + static_cast<std::size_t>(t)]);
    }
  return batch;
}

model::StepResult train(model::Trainer& trainer, std::int64_t step, std::int64_t tokens) {
  const auto& configuration = trainer.configuration();
  const Batch batch = short_batch(configuration, step, tokens);
  trainer.set_batch(batch.ids, batch.labels,
                    {configuration.train.microbatches, configuration.train.microbatch, tokens});
  return trainer.step(0.01);
}

std::unique_ptr<model::Trainer> make(const std::string& backend, std::vector<std::string> more) {
  more.push_back("backend=" + backend);
  return model::make_trainer(resolve(tiny_model("llama"), more));
}

std::vector<std::vector<std::byte>> gradients(model::Trainer& trainer) {
  std::vector<std::vector<std::byte>> result;
  for (const auto& slice : trainer.layout().slices())
    result.push_back(trainer.read(model::ParameterArray::gradients, slice));
  return result;
}

}  // namespace

TEST_CASE("case 22: a batch that is refused leaves the reason of the one before it as it was") {
  for (const std::string& backend : backend_names()) {
    const auto trainer = make(
        backend, {"graph.buckets=8", "graph.warmup_steps=0", "graph.recapture=true", "graph.checksums=true"});
    train(*trainer, 0, 8);
    // As many microbatches as tokens: more segments, and more checksums of them, than were planned.
    std::vector<std::int32_t> tokens(2 * 16, 1);
    CHECK_THROWS_AS(trainer->set_batch(tokens, tokens, {2, 1, 16}), OutOfMemoryError);
    const auto result = trainer->step(0.01);
    CHECK(result.report.mode == graph::StepMode::replay);
    CHECK(result.eager_reason.empty());
    CHECK(result.report.fallbacks == 0);
  }
}

TEST_CASE(
    "case 22: one token below, at and above the largest bucket: padded, replayed, and eager with a reason or "
    "refused") {
  for (const std::string& backend : backend_names()) {
    const std::vector<std::string> buckets{"graph.buckets=8,12", "graph.warmup_steps=0"};
    const auto trainer = make(backend, buckets);
    const auto eager = make(backend, {"graph.impl=none"});
    train(*trainer, 0, 12);
    const auto below = train(*trainer, 1, 11), at = train(*trainer, 2, 12), above = train(*trainer, 3, 13);
    CHECK(below.report.mode == graph::StepMode::replay);
    CHECK(below.tokens == 2 * 11);
    CHECK(below.computed_tokens == 2 * 12);
    CHECK(at.report.mode == graph::StepMode::replay);
    CHECK(at.computed_tokens == at.tokens);
    CHECK(at.eager_reason.empty());
    CHECK(above.report.mode == graph::StepMode::eager);
    CHECK(above.report.fallbacks == 1);
    CHECK(above.eager_reason ==
          "R-07: a sequence of 13 tokens is longer than the largest of graph.buckets, 12");
    for (const auto& [step, tokens] : std::vector<std::pair<int, int>>{{0, 12}, {1, 11}, {2, 12}, {3, 13}})
      train(*eager, step, tokens);
    const auto& statistics = trainer->length_statistics();
    CHECK(statistics.steps == 4);
    CHECK(statistics.replayed == 3);
    CHECK(statistics.coverage() == 0.75);
    CHECK(statistics.waste() == doctest::Approx(2.0 / 96.0));

    auto refusing = buckets;
    refusing.emplace_back("graph.above_largest=refuse");
    const auto strict = make(backend, refusing);
    CHECK_NOTHROW(train(*strict, 0, 12));
    const auto before = state_of(*strict);
    CHECK_THROWS_WITH_AS(train(*strict, 1, 13),
                         "R-07: a sequence has 13 tokens and the largest of graph.buckets is 12",
                         ReplayContractError);
    CHECK(state_of(*strict) == before);
    CHECK(train(*strict, 1, 12).report.mode == graph::StepMode::replay);
  }
}

TEST_CASE(
    "padding to a bucket changes no bit, whatever stands in it, and gives the unpadded numbers up to "
    "rounding") {
  for (const std::string& backend : backend_names()) {
    const auto padded = make(backend, {"graph.buckets=16", "graph.warmup_steps=0"});
    const auto exact = make(backend, {"graph.impl=none"});
    const auto configuration = padded->configuration();
    for (const std::int64_t tokens : {5, 9, 16}) {
      const Batch batch = short_batch(configuration, tokens, tokens);
      const auto by_hand = make(backend, {"graph.impl=none"});
      Batch full;
      for (std::size_t i = 0; i < 2 * 16; ++i) {
        const std::size_t row = i / 16, column = i % 16;
        const bool real = column < static_cast<std::size_t>(tokens);
        const std::size_t at = row * static_cast<std::size_t>(tokens) + column;
        full.ids.push_back(real ? batch.ids[at] : static_cast<std::int32_t>((i * 37) % 61));
        full.labels.push_back(real ? batch.labels[at] : -3);
      }
      const auto fresh = make(backend, {"graph.buckets=16", "graph.warmup_steps=0"});
      fresh->set_batch(batch.ids, batch.labels, {1, 2, tokens});
      by_hand->set_batch(full.ids, full.labels);
      CHECK(fresh->step(0.01).loss == by_hand->step(0.01).loss);
      CHECK(gradients(*fresh) == gradients(*by_hand));
      CHECK(state_of(*fresh) == state_of(*by_hand));
      const double one = train(*padded, tokens, tokens).loss, other = train(*exact, tokens, tokens).loss;
      CHECK(one == doctest::Approx(other).epsilon(1e-5));
    }
  }
}

TEST_CASE(
    "case 24: a hundred lengths under a bound of eight make eight recordings, and the others run eagerly and "
    "say why") {
  for (const std::string& backend : backend_names()) {
    auto settings = tiny_model("llama");
    settings.emplace_back("model.seq=128");
    const auto trainer = model::make_trainer(resolve(
        settings, {"backend=" + backend, "graph.recordings=8", "graph.warmup_steps=0", "model.layers=1"}));
    std::mt19937 generator(3);
    std::int64_t captures = 0, eager = 0, replays = 0;
    for (std::int64_t step = 0; step < 200; ++step) {
      const std::int64_t tokens = 1 + step % 100;
      std::vector<std::int32_t> ids, labels;
      for (std::int64_t i = 0; i < 2 * tokens; ++i) {
        ids.push_back(static_cast<std::int32_t>(generator() % 61));
        labels.push_back(static_cast<std::int32_t>(generator() % 61));
      }
      trainer->set_batch(ids, labels, {1, 2, tokens});
      const auto result = trainer->step(0.001);
      CHECK(std::isfinite(result.loss));
      captures += static_cast<std::int64_t>(result.report.captures);
      replays += result.report.mode == graph::StepMode::replay;
      if (result.report.mode == graph::StepMode::eager) {
        ++eager;
        CHECK(result.report.fallbacks == 1);
        CHECK(result.eager_reason == "R-09: all 8 of graph.recordings are taken by other lengths");
      }
    }
    // One of the eight is the configuration's own length, which never came.
    CHECK(captures == 7);
    CHECK(replays == 7);
    CHECK(eager == 186);
    CHECK(trainer->length_statistics().recorded_lengths == 7);
    CHECK(trainer->length_statistics().replayed == 14);
  }
}

TEST_CASE(
    "batches of other numbers of microbatches or sequences are refused with all that differs, or recorded "
    "when asked for") {
  for (const std::string& backend : backend_names()) {
    const std::vector<std::string> settings{"train.microbatches=2", "graph.warmup_steps=0"};
    const auto trainer = make(backend, settings);
    const auto set = [](model::Trainer& to, const model::BatchShape& shape) {
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(shape.elements()), 3);
      to.set_batch(ids, ids, shape);
    };
    CHECK_THROWS_WITH_AS(
        set(*trainer, {3, 1, 17}),
        "R-02: the batch has 3 microbatches and train.microbatches is 2; R-01: a microbatch has 1 "
        "sequences and train.microbatch is 2; R-07: a sequence has 17 tokens and train.seq is 16",
        ReplayContractError);
    CHECK_THROWS_AS(set(*trainer, {0, 2, 16}), ReplayContractError);
    auto asked = settings;
    asked.emplace_back("graph.recapture=true");
    const auto recapturing = make(backend, asked),
               eager = make(backend, {"train.microbatches=1", "graph.impl=none"});
    for (auto* each : {recapturing.get(), eager.get()}) set(*each, {1, 2, 16});
    const auto result = recapturing->step(0.01);
    CHECK(result.report.mode == graph::StepMode::capture);
    CHECK(result.loss == eager->step(0.01).loss);
    CHECK(gradients(*recapturing) == gradients(*eager));
    CHECK_THROWS_AS(set(*recapturing, {4, 2, 16}), ReplayContractError);

    // Few tokens that padding turns into more than there is memory for.
    asked.emplace_back("graph.buckets=16");
    const auto padding = make(backend, asked);
    CHECK_THROWS_WITH_AS(set(*padding, {4, 2, 1}), doctest::Contains("R-08: 4 microbatches of 2 sequences"),
                         OutOfMemoryError);
    set(*padding, {2, 2, 16});
    CHECK(std::isfinite(padding->step(0.01).loss));
  }
}

TEST_CASE("where nothing is recorded no batch needs a reason for running eagerly") {
  for (const std::string& backend : backend_names()) {
    const auto eager = make(backend, {"graph.impl=none"});
    for (const std::int64_t tokens : {16, 5, 9}) {
      const auto result = train(*eager, 0, tokens);
      CHECK(result.eager_reason.empty());
      CHECK(result.report.fallbacks == 0);
    }
  }
}

namespace {

/// A recurrent state of one number a slot: state = state / 2 + input, for the first `*rows` slots.
struct Recur {
  double* state;
  const double* input;
  const std::int64_t* rows;
  double* output;
  KOKKOS_FUNCTION void operator()(std::int64_t slot) const {
    if (slot >= *rows) return;
    state[slot] = state[slot] / 2 + input[slot];
    output[slot] = state[slot];
  }
};

/// The largest sum of input over a document; boundaries are device data: starts of documents, padded with the end.
struct SumDocuments {
  const double* input;
  const std::int32_t* starts;  ///< [most + 1]
  double* sums;                ///< [most]
  KOKKOS_FUNCTION void operator()(std::int64_t document) const {
    double sum = 0;
    for (std::int32_t at = starts[document]; at < starts[document + 1]; ++at) sum += input[at];
    sums[document] = sum;
  }
};

template <class Space>
struct Buffers {
  backend::Device<Space> device{1};
  graph::Program<Space> program;

  BufferId add(const std::string& name, backend::DataType type, std::int64_t size, BufferKind kind) {
    return program.add_buffer({name, type, {size}, kind});
  }
};

}  // namespace

TEST_CASE_TEMPLATE(
    "case 23 and 28: with the number of real rows on the device, padded rows change no state and nothing "
    "beyond them is written",
    Space, ENCORE_TEST_SPACES) {
  constexpr std::int64_t bucket = 8;
  constexpr double sentinel = -12345.0;
  std::vector<std::vector<double>> states;
  for (const CapturePolicy& policy : {CapturePolicy{}, whole}) {
    Buffers<Space> b;
    const auto state = b.add("mamba/state", backend::DataType::float64, bucket, BufferKind::state);
    const auto input = b.add("input", backend::DataType::float64, bucket, BufferKind::input);
    const auto rows = b.add("rows", backend::DataType::int64, 1, BufferKind::input);
    const auto output = b.add("output", backend::DataType::float64, bucket, BufferKind::metric);
    b.program.add_segment(
        {"layer.0/mamba/forward",
         graph::Module::mamba,
         graph::Phase::forward,
         0,
         0,
         {input, rows, state},
         {state, output}},
        [=](Execution<Space>& x) {
          backend::launch(
              x.stream(), "test::recur", {}, backend::Range{bucket},
              Recur{x.template pointer<double>(state), x.template pointer<const double>(input),
                    x.template pointer<const std::int64_t>(rows), x.template pointer<double>(output)});
        });
    TestArray<Space, double> slots(b.device.stream(), std::vector<double>(bucket, sentinel));
    TestArray<Space, double> values(b.device.stream(), std::vector<double>(bucket, 1e200));
    TestArray<Space, std::int64_t> real(b.device.stream(), {3});
    TestArray<Space, double> results(b.device.stream(), std::vector<double>(bucket, sentinel));
    graph::Bindings bindings(b.program.outline());
    const auto bind = [&](BufferId id, auto& array) {
      bindings.bind(id, reinterpret_cast<std::byte*>(array.data()));
    };
    bind(state, slots);
    bind(input, values);
    bind(rows, real);
    bind(output, results);
    Executor<Space> executor(b.device, b.program, bindings, policy);
    for (int step = 0; step < 10; ++step) {
      std::vector<double> next(bucket, 1e200);  // what a padded row holds must not matter
      for (int row = 0; row < 5; ++row) next[static_cast<std::size_t>(row)] = step + row;
      values.set(next);
      real.set({step < 5 ? 3 : 5});
      executor.step();
      const std::size_t used = step < 5 ? 3 : 5;
      for (std::size_t row = used; row < bucket; ++row) {
        CHECK(slots.get()[row] == sentinel);
        CHECK(results.get()[row] == sentinel);
      }
    }
    states.push_back(slots.get());
  }
  CHECK(states[0] == states[1]);
}

TEST_CASE_TEMPLATE(
    "case 26 and 27: boundaries of packed sequences are device data up to a declared maximum, and a capture "
    "reads none of them",
    Space, ENCORE_TEST_SPACES) {
  constexpr std::int64_t most = 6, tokens = 40;
  Buffers<Space> b;
  const auto starts = b.add("starts", backend::DataType::int32, most + 1, BufferKind::input);
  const auto input = b.add("input", backend::DataType::float64, tokens, BufferKind::input);
  const auto sums = b.add("sums", backend::DataType::float64, most, BufferKind::metric);
  b.program.add_segment(
      {"layer.0/attn/forward", graph::Module::attn, graph::Phase::forward, 0, 0, {starts, input}, {sums}},
      [=](Execution<Space>& x) {
        backend::launch(
            x.stream(), "test::sum_documents", {}, backend::Range{most},
            SumDocuments{x.template pointer<const double>(input),
                         x.template pointer<const std::int32_t>(starts), x.template pointer<double>(sums)});
      });
  // Boundaries that would lead out of the array if anything read them before they are set.
  TestArray<Space, std::int32_t> boundaries(b.device.stream(),
                                            {0, 2147483647, -2147483647, 0, 2147483647, 0, 2147483647});
  std::vector<double> numbers(tokens);
  std::iota(numbers.begin(), numbers.end(), 1.0);
  TestArray<Space, double> values(b.device.stream(), numbers);
  TestArray<Space, double> results(b.device.stream(), std::vector<double>(most, -1.0));
  graph::Bindings bindings(b.program.outline());
  bindings.bind(starts, reinterpret_cast<std::byte*>(boundaries.data()));
  bindings.bind(input, reinterpret_cast<std::byte*>(values.data()));
  bindings.bind(sums, reinterpret_cast<std::byte*>(results.data()));
  Executor<Space> executor(b.device, b.program, bindings, whole);
  CHECK(executor.prepare() == 1);
  CHECK(results.get() == std::vector<double>(most, -1.0));
  for (const std::vector<std::int32_t>& documents : {std::vector<std::int32_t>{0, 40, 40, 40, 40, 40, 40},
                                                     {0, 3, 9, 9, 20, 40, 40},
                                                     {0, 1, 2, 3, 4, 5, 40}}) {
    boundaries.set(documents);
    CHECK(executor.replay().mode == graph::StepMode::replay);
    const auto computed = results.get();
    for (std::size_t d = 0; d < most; ++d)
      CHECK(computed[d] ==
            std::accumulate(numbers.begin() + documents[d], numbers.begin() + documents[d + 1], 0.0));
  }
}
