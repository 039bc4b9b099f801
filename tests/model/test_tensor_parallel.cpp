// SPDX-License-Identifier: Apache-2.0
#include "rank_groups.hpp"
#include "tiny_models.hpp"
#include "whole_tensors.hpp"

#include <encore/model/step_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace {

using namespace encore;
using namespace encore::tests;

using Settings = std::vector<std::string>;

Settings and_more(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// What a training by all ranks of a layout came to.
struct Trained {
  std::vector<std::vector<double>> losses, gradient_norms;  ///< of each rank
  std::vector<TrainingState> states;
  std::vector<std::string> refusals;
  std::vector<graph::StepMode> modes;
  std::vector<double> evaluations;
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<float>> replicated;  ///< the parameters that each rank has all of
  std::map<std::string, std::vector<float>> weights;
  std::size_t ranks_of_stage = 1;
};

/// All numbers that a step changes, of the parts that a rank has.
TrainingState state_of_parts(model::Trainer& trainer) {
  using enum model::ParameterArray;
  TrainingState state;
  for (const auto array : {weights, first_moment, second_moment, master}) {
    if (!trainer.type_of(array)) continue;
    for (const model::ParameterBox& box : trainer.layout().boxes()) {
      const auto bytes = trainer.read(array, box);
      state.bytes.insert(state.bytes.end(), bytes.begin(), bytes.end());
    }
  }
  state.random = trainer.random_positions();
  return state;
}

/// Parameters that a rank has all of.
std::vector<float> replicated_weights(model::Trainer& trainer) {
  std::vector<float> all;
  for (const model::Parameter& parameter : trainer.layout().parameters()) {
    if (!parameter.is_whole()) continue;
    for (const model::ParameterBox& box : trainer.layout().boxes_of(parameter)) {
      const auto values = model::to_float(trainer.read(model::ParameterArray::weights, box),
                                          *trainer.type_of(model::ParameterArray::weights));
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

Trained train(const Settings& settings, std::int64_t steps) {
  const model::Configuration configuration = resolve(settings, {"backend=serial"});
  const model::ParallelConfiguration& parallel = configuration.parallel;
  const model::RankLayout layout(parallel, true);
  const auto ranks = static_cast<std::size_t>(layout.ranks());
  Trained trained;
  trained.ranks_of_stage = ranks / static_cast<std::size_t>(layout.stages());
  trained.losses.resize(ranks);
  trained.gradient_norms.resize(ranks);
  trained.states.resize(ranks);
  trained.refusals.resize(ranks);
  trained.modes.resize(ranks);
  trained.evaluations.resize(ranks);
  trained.logits.resize(ranks);
  trained.replicated.resize(ranks);
  WholeTensors weights;
  on_rank_layout(parallel, [&](const model::RankGroups& groups, std::int64_t number) {
    const auto rank = static_cast<std::size_t>(number);
    const auto trainer = model::make_trainer(configuration, groups);
    for (std::int64_t step = 0; step < steps; ++step) {
      set_share_of_batch(*trainer, step);
      const model::StepResult result = trainer->step(configuration.train.lr);
      trained.losses[rank].push_back(result.loss);
      trained.gradient_norms[rank].push_back(result.gradient_norm);
      trained.modes[rank] = result.report.mode;
    }
    trained.states[rank] = state_of_parts(*trainer);
    trained.refusals[rank] = trainer->refusal();
    const Batch batch = random_batch(configuration, 1000);
    const auto tokens = static_cast<std::size_t>(configuration.train.microbatch * configuration.train.seq);
    trained.evaluations[rank] =
        trainer->evaluate(std::span(batch.ids).first(tokens), std::span(batch.labels).first(tokens));
    if (layout.place_of(number).stage == layout.stages() - 1) trained.logits[rank] = trainer->logits();
    trained.replicated[rank] = replicated_weights(*trainer);
    weights.add(*trainer, model::ParameterArray::weights);
  });
  trained.weights = weights.tensors();
  return trained;
}

double largest_difference(const std::vector<float>& first, const std::vector<float>& second) {
  REQUIRE(first.size() == second.size());
  double difference = 0, scale = 1e-3;
  for (std::size_t i = 0; i < first.size(); ++i) {
    difference = std::max(difference, std::abs(double(first[i]) - double(second[i])));
    scale = std::max(scale, std::abs(double(first[i])));
  }
  return difference / scale;
}

struct Closeness {
  double losses, norms, weights;
};

void check_same_training(const Trained& alone, const Trained& ranks, const Closeness& closeness) {
  for (std::size_t rank = 0; rank < ranks.losses.size(); ++rank) {
    CAPTURE(rank);
    CHECK(ranks.refusals[rank] == "");
    CHECK(ranks.modes[rank] == graph::StepMode::replay);
    for (std::size_t step = 0; step < alone.losses[0].size(); ++step) {
      CAPTURE(step);
      CHECK(ranks.losses[rank][step] == doctest::Approx(alone.losses[0][step]).epsilon(closeness.losses));
      CHECK(ranks.gradient_norms[rank][step] ==
            doctest::Approx(alone.gradient_norms[0][step]).epsilon(closeness.norms));
    }
    // Ranks of other stages have other layers.
    CHECK(ranks.replicated[rank] == ranks.replicated[rank - rank % ranks.ranks_of_stage]);
    CHECK(ranks.evaluations[rank] == doctest::Approx(alone.evaluations[0]).epsilon(closeness.losses));
    if (!ranks.logits[rank].empty())
      CHECK(largest_difference(alone.logits[0], ranks.logits[rank]) < closeness.weights);
  }
  REQUIRE(ranks.weights.size() == alone.weights.size());
  for (const auto& [name, tensor] : alone.weights) {
    CAPTURE(name);
    CHECK(largest_difference(tensor, ranks.weights.at(name)) < closeness.weights);
  }
}

struct Model {
  std::string name;
  Settings settings;
};

Settings on(std::int64_t ranks, bool sequence) {
  return {"parallel.tensor=" + std::to_string(ranks),
          std::string("parallel.sequence=") + (sequence ? "true" : "false")};
}

/// Small learning rates: sums in another order then stay close for many steps.
Settings gentle(const Settings& settings) {
  return and_more(settings, {"train.lr=0.002", "train.min_lr=0.002", "train.microbatches=2"});
}

Settings hybrid_without_experts() {
  return {"model.family=nemotron_h", "model.layers=4",         "model.pattern=M*M-",  "model.hidden=32",
          "model.heads=4",           "model.kv_heads=2",       "model.head_dim=8",    "model.ffn=48",
          "model.mamba_heads=4",     "model.mamba_head_dim=8", "model.mamba_state=8", "model.mamba_groups=2",
          "model.mamba_chunk=8",     "model.vocab=61",         "model.seq=16",        "train.microbatch=2",
          "train.steps=100",         "train.lr=0.01",          "train.min_lr=0.01",   "seed=5"};
}

Settings mamba() {
  return {"model.family=mamba2",
          "model.layers=2",
          "model.hidden=32",
          "model.mamba_heads=8",
          "model.mamba_head_dim=8",
          "model.mamba_state=8",
          "model.mamba_groups=2",
          "model.mamba_norm_groups=2",
          "model.mamba_bias=true",
          "model.mamba_chunk=8",
          "model.vocab=61",
          "model.seq=16",
          "train.microbatch=2",
          "train.steps=100",
          "seed=5"};
}

/// 61 rows of the vocabulary cannot be dealt out evenly.
std::vector<Model> models() {
  const Settings qwen = and_more(tiny_model("qwen3"), {"model.kv_heads=2", "model.query_key_norm=true"});
  return {
      {"llama", gentle(tiny_model("llama"))},
      {"llama with tied embeddings", gentle(and_more(tiny_model("llama"), {"model.tie_embeddings=true"}))},
      {"gpt2", gentle(tiny_model("gpt2"))},
      {"qwen3 with normalized queries and keys", gentle(qwen)},
      {"attention with sinks",
       gentle(and_more(tiny_model("llama"),
                       {"model.attention_sinks=true", "model.pattern=~-*-", "model.sliding_window=5"}))},
      {"mamba2", gentle(mamba())},
      {"hybrid", gentle(hybrid_without_experts())}};
}

}  // namespace

TEST_CASE(
    "50 steps of tensor ranks, with tokens dealt out too or not, give the losses and weights of one rank") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const Trained alone = train(model.settings, 50);
    for (const bool sequence : {false, true}) {
      CAPTURE(sequence);
      check_same_training(alone, train(and_more(model.settings, on(2, sequence)), 50), {1e-4, 1e-2, 5e-3});
    }
  }
}

TEST_CASE("four tensor ranks, and two of each of two data ranks, give the losses and weights of one rank") {
  const Settings model = and_more(gentle(tiny_model("llama")), {"model.kv_heads=4"});
  const Trained alone = train(model, 30);
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    check_same_training(alone, train(and_more(model, on(4, sequence)), 30), {1e-4, 1e-2, 5e-3});
    for (const char* shard : {"parallel.shard_optimizer=false", "parallel.shard_optimizer=true"})
      check_same_training(alone,
                          train(and_more(and_more(model, on(2, sequence)),
                                         {"parallel.data=2", "train.microbatches=1", shard}),
                                30),
                          {1e-4, 1e-2, 5e-3});
  }
}

TEST_CASE("two tensor ranks of each of two stages give the losses and weights of one rank") {
  for (const char* family : {"llama", "gpt2"}) {
    const Settings model = gentle(tiny_model(family));
    const Trained alone = train(model, 30);
    for (const bool sequence : {false, true}) {
      CAPTURE(sequence);
      check_same_training(alone,
                          train(and_more(and_more(model, on(2, sequence)), {"parallel.pipeline=2"}), 30),
                          {1e-4, 1e-2, 5e-3});
    }
  }
}

TEST_CASE("tensor ranks with bfloat16 stay close to one rank, and to each other bit for bit") {
  for (const std::string family : {"llama", "gpt2"}) {
    CAPTURE(family);
    const Settings model =
        and_more(gentle(tiny_model(family)), {"train.precision=bf16", "train.master_weights=true"});
    const Trained alone = train(model, 30);
    for (const bool sequence : {false, true}) {
      CAPTURE(sequence);
      const Trained ranks = train(and_more(model, on(2, sequence)), 30);
      CHECK(ranks.losses[1] == ranks.losses[0]);
      CHECK(ranks.replicated[1] == ranks.replicated[0]);
      for (std::size_t step = 0; step < 30; ++step) {
        CAPTURE(step);
        CHECK(ranks.losses[0][step] == doctest::Approx(alone.losses[0][step]).epsilon(2e-3));
        CHECK(ranks.gradient_norms[0][step] == doctest::Approx(alone.gradient_norms[0][step]).epsilon(0.05));
      }
    }
  }
}

TEST_CASE("what tensor ranks have in common they drop alike: as one rank does") {
  const Settings model = gentle(and_more(tiny_model("gpt2"), {"model.dropout=0.1"}));
  check_same_training(train(model, 50), train(and_more(model, on(2, false)), 50), {1e-4, 1e-2, 5e-3});
}

TEST_CASE("of what is dealt out tensor ranks drop something else, and keep the same common weights") {
  const Settings model =
      gentle(and_more(tiny_model("gpt2"), {"model.dropout=0.1", "model.attention_dropout=0.1"}));
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    const Trained trained = train(and_more(model, on(2, sequence)), 40);
    CHECK(trained.losses[1] == trained.losses[0]);
    CHECK(trained.replicated[1] == trained.replicated[0]);
    CHECK(trained.losses[0].back() < 0.9 * trained.losses[0].front());
  }
}

TEST_CASE("tensor ranks replay what they do eagerly, bit for bit, under every policy") {
  const std::vector<Model> some{
      {"llama with normalized queries and keys",
       and_more(tiny_model("llama"), {"model.query_key_norm=true", "train.microbatches=2"})},
      {"gpt2 with dropout",
       and_more(tiny_model("gpt2"), {"model.dropout=0.1", "model.attention_dropout=0.1"})},
      {"hybrid", hybrid_without_experts()}};
  for (const Model& model : some) {
    CAPTURE(model.name);
    for (const bool sequence : {false, true}) {
      CAPTURE(sequence);
      const Settings settings = and_more(model.settings, on(2, sequence));
      const Trained eager = train(and_more(settings, {"graph.impl=none"}), 10);
      for (const Settings& policy : std::vector<Settings>{{"graph.impl=full_iteration"},
                                                          {"graph.impl=layer"},
                                                          {"graph.impl=layer", "graph.modules=attn,mlp"}}) {
        CAPTURE(policy.back());
        const Trained captured = train(and_more(settings, policy), 10);
        for (std::size_t rank = 0; rank < 2; ++rank) {
          CHECK(captured.refusals[rank] == "");
          CHECK(captured.modes[rank] == graph::StepMode::replay);
          CHECK(captured.losses[rank] == eager.losses[rank]);
          CHECK(captured.states[rank] == eager.states[rank]);
          CHECK(captured.evaluations[rank] == eager.evaluations[rank]);
        }
      }
    }
  }
}

TEST_CASE("recomputing and delaying weight gradients change no bit on tensor ranks") {
  for (const Settings& model : {and_more(tiny_model("gpt2"), {"model.dropout=0.1", "train.microbatches=2"}),
                                hybrid_without_experts()}) {
    for (const bool sequence : {false, true}) {
      CAPTURE(sequence);
      const Settings settings = and_more(model, on(2, sequence));
      const Trained plain = train(settings, 8);
      for (const char* more :
           {"train.recompute=full", "train.recompute=attn,mlp", "train.delay_wgrad=true"}) {
        CAPTURE(more);
        const Trained other = train(and_more(settings, {more}), 8);
        for (std::size_t rank = 0; rank < 2; ++rank) {
          CHECK(other.losses[rank] == plain.losses[rank]);
          CHECK(other.states[rank] == plain.states[rank]);
        }
      }
    }
  }
}

TEST_CASE("gradients that tensor ranks have terms of are summed once a step, before data ranks reduce them") {
  for (const Settings& more : std::vector<Settings>{{},
                                                    {"train.recompute=full"},
                                                    {"train.delay_wgrad=true"},
                                                    {"graph.impl=layer", "graph.modules=attn"}}) {
    const auto configuration =
        resolve(and_more(tiny_model("llama"),
                         {"parallel.data=2", "parallel.tensor=2", "parallel.sequence=true",
                          "train.microbatches=3", "backend=serial", "model.ffn=1024", "model.layers=3"}),
                more);
    const graph::Outline outline = model::plan_step(configuration).outline;
    const auto& segments = outline.segments();
    const auto first_of = [&](std::string_view prefix) {
      return std::ranges::find_if(segments,
                                  [&](const graph::Segment& each) { return each.name.starts_with(prefix); }) -
             segments.begin();
    };
    std::ptrdiff_t last_norm_gradient = -1;
    for (std::size_t i = 0; i < segments.size(); ++i)
      for (const graph::BufferId id :
           segments[i].module == graph::Module::comm ? std::vector<graph::BufferId>() : segments[i].writes)
        if (outline.buffer(id).name.ends_with("norm.weight.gradient"))
          last_norm_gradient = static_cast<std::ptrdiff_t>(i);
    const std::ptrdiff_t sum = first_of("tensor/sum_gradients");
    REQUIRE(sum < static_cast<std::ptrdiff_t>(segments.size()));
    CHECK(sum > last_norm_gradient);
    // The stretch that has them is reduced behind it.
    const auto reduction = std::find_if(
        segments.begin() + sum, segments.end(),
        [](const graph::Segment& each) { return each.name.starts_with("data/reduce_gradients"); });
    CHECK(reduction != segments.end());
    // Other stretches need not wait for the sum, unless all weight gradients come behind it.
    if (!configuration.train.delay_wgrad) CHECK(first_of("data/reduce_gradients") < sum);
    CHECK(std::ranges::count_if(segments, [](const graph::Segment& each) {
            return each.name.starts_with("tensor/sum_gradients");
          }) == 1);
  }
}

TEST_CASE("with tokens dealt out a rank keeps half as much of the residual stream and of normalized inputs") {
  const auto elements = [](const Settings& more, const std::string& name) {
    const auto outline =
        model::plan_step(resolve(and_more(tiny_model("llama"), more), {"backend=serial"})).outline;
    return outline.buffer(outline.find_buffer(name).value()).elements();
  };
  for (const char* name : {"layer.0/attn/result", "layer.1/mlp/normalized", "embedding/result",
                           "residual_gradient", "head/normalized"}) {
    CAPTURE(name);
    CHECK(elements(on(2, false), name) == elements({}, name));
    CHECK(elements(on(2, true), name) * 2 == elements({}, name));
  }
  for (const char* name : {"layer.0/attn/qkv", "layer.1/mlp/raised"}) {
    CAPTURE(name);
    CHECK(elements(on(2, false), name) * 2 == elements({}, name));
    CHECK(elements(on(2, true), name) * 2 == elements({}, name));
  }
}

TEST_CASE("a batch whose tokens cannot be dealt out trains as on one rank") {
  const auto losses_of = [](const Settings& more) {
    const model::Configuration configuration =
        resolve(and_more(gentle(tiny_model("llama")), more), {"backend=serial", "train.microbatch=1"});
    std::vector<std::vector<double>> losses(static_cast<std::size_t>(configuration.parallel.tensor));
    on_rank_layout(configuration.parallel, [&](const model::RankGroups& groups, std::int64_t rank) {
      const auto trainer = model::make_trainer(configuration, groups);
      for (std::int64_t step = 0; step < 6; ++step) {
        const model::BatchShape shape{2, 1, step % 2 == 0 ? 7 : 16};
        const Batch batch = random_batch(configuration, step);
        const auto count = static_cast<std::size_t>(shape.elements());
        trainer->set_batch(std::span(batch.ids).first(count), std::span(batch.labels).first(count), shape);
        losses[static_cast<std::size_t>(rank)].push_back(trainer->step(configuration.train.lr).loss);
      }
    });
    return losses;
  };
  const auto alone = losses_of({}), ranks = losses_of(on(2, true));
  for (const auto& of_rank : ranks)
    for (std::size_t step = 0; step < 6; ++step)
      CHECK(of_rank[step] == doctest::Approx(alone[0][step]).epsilon(1e-5));
}
