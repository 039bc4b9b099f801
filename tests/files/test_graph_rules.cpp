// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/graph_rules.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "temporary_folder.hpp"

using namespace encore::model;
using encore::ConfigurationError;

namespace {

using Assignments = std::vector<std::string>;

ConfigurationSources sources_of(const Assignments& assignments) {
  ConfigurationSources sources;
  sources.preset("bytes");
  for (const std::string& assignment : assignments) sources.assignment(assignment);
  return sources;
}

/// Settings that meet a rule, and the same after the change that the rule proposes.
struct Case {
  GraphRule rule;
  Assignments meets;
  std::vector<Assignments> changed;
};

const std::vector<Case>& refused_cases() {
  using enum GraphRule;
  static const std::vector<Case> cases = {
      {unknown_implementation,
       {"graph.impl=cuda"},
       {{"graph.impl=none"}, {"graph.impl=layer"}, {"graph.impl=full_iteration"}}},
      {unknown_implementation,
       {"cuda_graph_impl=te"},
       {{"cuda_graph_impl=none"},
        {"cuda_graph_impl=local"},
        {"cuda_graph_impl=transformer_engine"},
        {"cuda_graph_impl=full_iteration"}}},
      {modules_without_layer, {"graph.modules=attn"}, {{"graph.impl=layer", "graph.modules=attn"}, {}}},
      {modules_without_layer,
       {"graph.impl=full_iteration", "graph.modules=mlp"},
       {{"graph.impl=layer", "graph.modules=mlp"}, {"graph.impl=full_iteration"}}},
      {modules_without_layer,
       {"cuda_graph_impl=full_iteration", "cuda_graph_scope=attn"},
       {{"cuda_graph_impl=full_iteration"}, {"cuda_graph_impl=local", "cuda_graph_scope=attn"}}},
      {full_beside_modules,
       {"cuda_graph_impl=local", "cuda_graph_scope=full,attn"},
       {{"cuda_graph_impl=local", "cuda_graph_scope=full"},
        {"cuda_graph_impl=local", "cuda_graph_scope=attn"}}},
      {full_iteration_of_transformer_engine,
       {"cuda_graph_impl=transformer_engine", "cuda_graph_scope=full_iteration"},
       {{"cuda_graph_impl=full_iteration"}}},
      {inference_scope,
       {"cuda_graph_impl=local", "inference_cuda_graph_scope=block"},
       {{"cuda_graph_impl=local"}, {"cuda_graph_impl=local", "inference_cuda_graph_scope=none"}}},
      {inference_scope, {"cuda_graph_scope=full_iteration_inference"}, {{}}},
      {inference_scope,
       {"cuda_graph_scope=full_iteration", "inference_cuda_graph_scope=layer"},
       {{"cuda_graph_scope=full_iteration"}}},
      {full_iteration_beside_modules,
       {"cuda_graph_impl=local", "cuda_graph_modules=attn,full_iteration"},
       {{"cuda_graph_impl=local", "cuda_graph_modules=full_iteration"},
        {"cuda_graph_impl=local", "cuda_graph_modules=attn"}}},
      {full_iteration_beside_modules,
       {"cuda_graph_scope=full_iteration,full_iteration_inference"},
       {{"cuda_graph_scope=full_iteration"}}},
      {two_forms,
       {"cuda_graph_impl=local", "cuda_graph_scope=attn", "cuda_graph_modules=attn"},
       {{"cuda_graph_impl=local", "cuda_graph_scope=attn"},
        {"cuda_graph_impl=local", "cuda_graph_modules=attn"}}},
      {two_forms,
       {"cuda_graph_impl=local", "graph.impl=layer"},
       {{"cuda_graph_impl=local"}, {"graph.impl=layer"}}},
      {two_forms,
       {"cuda_graph_impl=local", "cuda_graph_scope=attn", "graph.modules=attn"},
       {{"cuda_graph_impl=local", "cuda_graph_scope=attn"}}},
      {two_forms,
       {"cuda_graph_warmup_steps=2", "graph.warmup_steps=2"},
       {{"cuda_graph_warmup_steps=2"}, {"graph.warmup_steps=2"}}},
      {legacy_flag_beside_implementation,
       {"enable_cuda_graph=true", "external_cuda_graph=true"},
       {{"enable_cuda_graph=true"},
        {"external_cuda_graph=true"},
        {"enable_cuda_graph=true", "external_cuda_graph=false"}}},
      {legacy_flag_beside_implementation,
       {"external_cuda_graph=true", "cuda_graph_impl=transformer_engine"},
       {{"external_cuda_graph=true"}, {"cuda_graph_impl=transformer_engine"}}},
      {legacy_flag_beside_implementation,
       {"enable_cuda_graph=true", "graph.impl=layer"},
       {{"enable_cuda_graph=true"}, {"graph.impl=layer"}}},
      {modules_without_implementation,
       {"cuda_graph_modules=attn"},
       {{"cuda_graph_modules=attn", "cuda_graph_impl=transformer_engine"}}},
      {repeated_module,
       {"graph.impl=layer", "graph.modules=attn,mlp,attn"},
       {{"graph.impl=layer", "graph.modules=attn,mlp"}}},
      {unknown_module,
       {"graph.impl=layer", "graph.modules=atn"},
       {{"graph.impl=layer", "graph.modules=attn"}}},
      {unknown_module,
       {"cuda_graph_impl=local", "cuda_graph_scope=attention"},
       {{"cuda_graph_impl=local", "cuda_graph_scope=attn"}}},
      {moe_beside_router,
       {"graph.impl=layer", "graph.modules=moe,moe_router"},
       {}},  // what is left meets moe_without_experts
      {preprocess_without_router, {"graph.impl=layer", "graph.modules=moe_preprocess,attn"}, {}},
      {moe_without_experts,
       {"graph.impl=layer", "graph.modules=moe"},
       {{"graph.impl=layer", "graph.modules="}}},
      {moe_without_experts,
       {"graph.impl=layer", "graph.modules=moe_preprocess,moe_router,attn"},
       {{"graph.impl=layer", "graph.modules=attn"}}},
      {mamba_without_layers,
       {"cuda_graph_impl=transformer_engine", "cuda_graph_modules=mamba,mlp"},
       {{"cuda_graph_impl=transformer_engine", "cuda_graph_modules=mlp"}}},
      {joined_without_full_iteration,
       {"graph.impl=layer", "graph.optimizer=joined"},
       {{"graph.impl=layer", "graph.optimizer=separate"},
        {"graph.impl=layer", "graph.optimizer=eager"},
        {"graph.impl=full_iteration", "graph.optimizer=joined"}}},
      {joined_without_full_iteration,
       {"graph.impl=none", "graph.optimizer=joined"},
       {{"graph.impl=none", "graph.optimizer=eager"}}},
      {separate_without_graphs,
       {"graph.impl=none", "graph.optimizer=separate"},
       {{"graph.impl=none", "graph.optimizer=eager"}, {"graph.impl=none"}}},
      {several_devices, {"parallel.data=2"}, {{"parallel.data=1"}}},
      {several_devices, {"parallel.tensor=4"}, {{"parallel.tensor=1"}}},
      {several_devices, {"parallel.expert=8"}, {{"parallel.expert=1"}}},
      {bucket_beyond_sequence,
       {"train.seq=64", "graph.buckets=32,65"},
       {{"train.seq=64", "graph.buckets=32"}, {"train.seq=65", "graph.buckets=32,65"}}},
      {buckets_beyond_recordings,
       {"graph.buckets=8,16,32", "graph.recordings=2"},
       {{"graph.buckets=8,16,32", "graph.recordings=3"}, {"graph.buckets=8,16", "graph.recordings=2"}}},
      {full_beside_recompute_modules,
       {"train.recompute=attn,full"},
       {{"train.recompute=full"}, {"train.recompute=attn"}}},
      {unknown_recompute_module,
       {"train.recompute=head"},
       {{"train.recompute=attn,mlp"}, {"train.recompute=full"}}},
      {unknown_recompute_module,
       {"recompute_granularity=selective", "recompute_modules=core_attn,layernorm"},
       {{"recompute_granularity=selective", "recompute_modules=core_attn,mlp"}}},
      {recompute_modules_without_selective,
       {"recompute_modules=mlp"},
       {{"recompute_granularity=selective", "recompute_modules=mlp"}, {}}},
      {recompute_modules_without_selective,
       {"recompute_granularity=full", "recompute_modules=mlp"},
       {{"recompute_granularity=full"}}},
      {recompute_of_layer_groups,
       {"recompute_granularity=full", "recompute_method=block"},
       {{"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"}}},
      {recompute_of_layer_groups,
       {"recompute_granularity=full", "recompute_num_layers=2"},
       {{"recompute_granularity=full", "recompute_num_layers=1"}}},
      {virtual_stages_without_pipeline,
       {"model.layers=8", "parallel.virtual_stages=2"},
       {{"model.layers=8", "parallel.virtual_stages=2", "parallel.pipeline=2", "train.microbatches=2"},
        {"model.layers=8", "parallel.virtual_stages=1"}}},
      {layers_not_divided,
       {"model.layers=8", "parallel.pipeline=3"},
       {{"model.layers=9", "parallel.pipeline=3"}, {"model.layers=8", "parallel.pipeline=4"}}},
      {layers_not_divided,
       {"model.layers=8", "pipeline_model_parallel_size=2", "num_layers_per_virtual_pipeline_stage=3"},
       {{"model.layers=8", "pipeline_model_parallel_size=2", "num_layers_per_virtual_pipeline_stage=4"},
        {"model.layers=12", "pipeline_model_parallel_size=2", "num_layers_per_virtual_pipeline_stage=3",
         "train.microbatches=4"}}},
      {microbatches_not_divided,
       {"model.layers=8", "parallel.pipeline=2", "parallel.virtual_stages=2", "train.microbatches=3"},
       {{"model.layers=8", "parallel.pipeline=2", "parallel.virtual_stages=2", "train.microbatches=4"},
        {"model.layers=8", "parallel.pipeline=2", "train.microbatches=3"}}},
      {two_forms,
       {"recompute_granularity=full", "train.recompute=full"},
       {{"recompute_granularity=full"}, {"train.recompute=full"}}},
      {two_forms,
       {"delay_wgrad_compute=true", "train.delay_wgrad=true"},
       {{"delay_wgrad_compute=true"}, {"train.delay_wgrad=true"}}},
      {two_forms,
       {"pipeline_model_parallel_size=1", "parallel.pipeline=1"},
       {{"pipeline_model_parallel_size=1"}, {"parallel.pipeline=1"}}},
      {two_forms,
       {"num_virtual_stages_per_pipeline_rank=1", "parallel.virtual_stages=1"},
       {{"num_virtual_stages_per_pipeline_rank=1"}, {"parallel.virtual_stages=1"}}},
      {two_forms,
       {"num_virtual_stages_per_pipeline_rank=1", "virtual_pipeline_model_parallel_size=1"},
       {{"num_virtual_stages_per_pipeline_rank=1"}, {"virtual_pipeline_model_parallel_size=1"}}},
      {several_devices, {"tensor_model_parallel_size=2"}, {{"tensor_model_parallel_size=1"}}},
  };
  return cases;
}

const std::vector<Case>& noted_cases() {
  using enum GraphRule;
  static const std::vector<Case> cases = {
      {modules_cleared, {"graph.impl=none", "graph.modules=attn"}, {{"graph.impl=none"}}},
      {modules_cleared, {"cuda_graph_impl=none", "cuda_graph_scope=attn,mlp"}, {{"cuda_graph_impl=none"}}},
      {older_spelling, {"enable_cuda_graph=true"}, {{"cuda_graph_impl=local"}, {"graph.impl=layer"}}},
      {older_spelling, {"external_cuda_graph=true"}, {{"cuda_graph_impl=transformer_engine"}}},
      {older_spelling, {"cuda_graph_scope=full_iteration"}, {{"cuda_graph_impl=full_iteration"}}},
      {older_spelling,
       {"cuda_graph_impl=transformer_engine", "cuda_graph_scope=full"},
       {{"cuda_graph_impl=transformer_engine"}}},
      {local_without_inference,
       {"cuda_graph_impl=local"},
       {{"cuda_graph_impl=local", "inference_cuda_graph_scope=none"}, {"graph.impl=layer"}}},
      {random_tracker, {"use_te_rng_tracker=true"}, {{}}},
      {random_tracker, {"te_rng_tracker=false"}, {{}}},
      {no_warmup,
       {"graph.warmup_steps=0"},
       {{"graph.warmup_steps=1"}, {"graph.warmup_steps=0", "graph.impl=none"}}},
      {validation_without_graphs,
       {"graph.impl=none", "graph.validate_every=5"},
       {{"graph.impl=none"}, {"graph.validate_every=5"}}},
      {whole_attention_recomputed, {"recompute_granularity=selective"}, {{"train.recompute=attn"}}},
      {whole_attention_recomputed,
       {"recompute_granularity=selective", "recompute_modules=mlp,core_attn"},
       {{"train.recompute=mlp,attn"}, {"recompute_granularity=selective", "recompute_modules=mlp"}}},
  };
  return cases;
}

/// Settings that others refuse. A lifted rule without any is about what happens while a program runs: there
/// is nothing to configure.
const std::vector<std::pair<GraphRule, std::vector<Assignments>>>& lifted_cases() {
  using enum GraphRule;
  static const std::vector<std::pair<GraphRule, std::vector<Assignments>>> cases = {
      {recompute_of_recorded_part,
       {{"graph.impl=layer", "train.recompute=full"},
        {"graph.impl=layer", "graph.modules=mlp", "train.recompute=attn"},
        {"graph.impl=layer", "graph.modules=attn", "train.recompute=attn"},
        {"cuda_graph_impl=transformer_engine", "recompute_granularity=full"}}},
      {random_numbers_of_recompute,
       {{"model.attention_dropout=0.1", "train.recompute=attn", "graph.impl=layer", "graph.modules=attn"},
        {"model.dropout=0.1", "train.recompute=mlp", "graph.impl=full_iteration"}}},
      {delayed_weight_gradients,
       {{"train.delay_wgrad=true", "graph.impl=layer", "graph.modules=attn", "model.qkv_bias=true"},
        {"delay_wgrad_compute=true", "graph.impl=full_iteration"}}},
      {finite_check, {{"graph.impl=full_iteration", "train.clip=1"}}},
      {recorded_optimizer,
       {{"graph.optimizer=joined", "train.lr_warmup_steps=10"},
        {"graph.optimizer=separate", "train.clip=0.5"}}},
      {per_layer_graphs,
       {{"cuda_graph_impl=local", "cuda_graph_scope=attn"},
        {"cuda_graph_impl=local", "cuda_graph_modules=mlp"}}},
  };
  return cases;
}

std::string joined(const Assignments& assignments) {
  std::string text;
  for (const std::string& assignment : assignments) text += assignment + " ";
  return text;
}

/// The error's sentence, or an empty one if the settings are accepted.
std::string refusal_of(const Assignments& assignments) {
  try {
    sources_of(assignments).resolve();
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return {};
}

/// Whether the sentence shows one of the settings; what Megatron's modules resolve to is shown as our key.
bool names_a_key_of(const std::string& sentence, const Assignments& assignments) {
  return sentence.find("graph.modules = ") != std::string::npos ||
         std::ranges::any_of(assignments, [&sentence](const std::string& assignment) {
           return sentence.find(assignment.substr(0, assignment.find('=')) + " = ") != std::string::npos;
         });
}

bool holds_note(const std::vector<std::string>& notes, GraphRule rule) {
  return std::ranges::any_of(notes, [rule](const std::string& note) {
    return note.starts_with(std::string(graph_rule(rule).id) + ": ") &&
           note.ends_with(graph_rule(rule).reason);
  });
}

bool begins_with_id(const std::string& sentence) {
  return std::ranges::any_of(graph_rules(), [&sentence](const Rule& rule) {
    return sentence.starts_with(std::string(rule.id) + ": ");
  });
}

std::set<std::string_view> ids_of(RuleOutcome outcome) {
  std::set<std::string_view> ids;
  for (const Rule& rule : graph_rules())
    if (rule.outcome == outcome) ids.insert(rule.id);
  return ids;
}

}  // namespace

TEST_CASE("each refusal names its rule, the reason and a change, and accepts the settings after the change") {
  std::set<std::string_view> seen;
  for (const auto& [rule, meets, changed] : refused_cases()) {
    const Rule& expected = graph_rule(rule);
    CAPTURE(expected.id);
    CAPTURE(joined(meets));
    const std::string sentence = refusal_of(meets);
    CAPTURE(sentence);
    CHECK(sentence.starts_with(std::string(expected.id) + ": "));
    CHECK(sentence.find(": " + std::string(expected.reason) + "; " + std::string(expected.change)) !=
          std::string::npos);
    CHECK(names_a_key_of(sentence, meets));
    for (const Assignments& after : changed) {
      CAPTURE(joined(after));
      CHECK(refusal_of(after).empty());
    }
    seen.insert(expected.id);
  }
  CHECK(seen == ids_of(RuleOutcome::refused));
}

TEST_CASE("a rule about experts gives way to the next one until no experts are asked for") {
  const auto id = [](const char* modules) {
    return refusal_of({"graph.impl=layer", std::string("graph.modules=") + modules}).substr(0, 4);
  };
  CHECK(id("moe,moe_router") == graph_rule(GraphRule::moe_beside_router).id);
  CHECK(id("moe_router") == graph_rule(GraphRule::moe_without_experts).id);
  CHECK(id("moe_preprocess") == graph_rule(GraphRule::preprocess_without_router).id);
  CHECK(id("moe_preprocess,moe_router") == graph_rule(GraphRule::moe_without_experts).id);
  CHECK(id("").empty());
}

TEST_CASE("an unknown kind or part is refused with the nearest known one") {
  CHECK(refusal_of({"graph.impl=full-iteration"}).ends_with("(did you mean 'full_iteration'?)"));
  CHECK(refusal_of({"cuda_graph_impl=transformer-engine"}).ends_with("(did you mean 'transformer_engine'?)"));
  CHECK(
      refusal_of({"graph.impl=layer", "graph.modules=moe_routr"}).ends_with("(did you mean 'moe_router'?)"));
}

TEST_CASE("each note names its rule, and the proposed change makes it go away") {
  std::set<std::string_view> seen;
  for (const auto& [rule, meets, changed] : noted_cases()) {
    CAPTURE(graph_rule(rule).id);
    CAPTURE(joined(meets));
    CHECK(holds_note(sources_of(meets).resolve().notes, rule));
    for (const Assignments& after : changed) {
      CAPTURE(joined(after));
      CHECK_FALSE(holds_note(sources_of(after).resolve().notes, rule));
    }
    seen.insert(graph_rule(rule).id);
  }
  // Needs sources of different strength: the next test.
  seen.insert(graph_rule(GraphRule::detail_overruled).id);
  CHECK(seen == ids_of(RuleOutcome::noted));
  CHECK(sources_of({}).resolve().notes.empty());
}

TEST_CASE("a detail that a stronger source overrules is noted with both") {
  const auto notes = [](const char* file, const char* assignment) {
    return ConfigurationSources().preset("bytes").json(file, "f").assignment(assignment).resolve().notes;
  };
  CHECK(notes(R"({"graph": {"impl": "layer", "modules": ["attn"]}})", "graph.impl=full_iteration") ==
        std::vector<std::string>{"G-20: graph.modules = attn (f) was dropped because graph.impl = "
                                 "full_iteration (--set): a later kind of source wins over an earlier one"});
  CHECK(notes(R"({"graph": {"impl": "layer", "modules": ["attn"]}})", "graph.impl=none") ==
        std::vector<std::string>{"G-19: graph.modules = attn (f) was cleared because graph.impl = none "
                                 "(--set): nothing is recorded"});
  CHECK(notes(R"({"graph": {"optimizer": "joined"}})", "graph.impl=layer").size() == 1);
  CHECK(notes(R"({"graph": {"impl": "layer"}})", "graph.impl=none").empty());
}

TEST_CASE("what others refuse and works here is accepted without a word about that rule") {
  for (const auto& [rule, accepted] : lifted_cases()) {
    CAPTURE(graph_rule(rule).id);
    CHECK(graph_rule(rule).outcome == RuleOutcome::lifted);
    CHECK_FALSE(accepted.empty());
    for (const Assignments& assignments : accepted) {
      CAPTURE(joined(assignments));
      CHECK(refusal_of(assignments).empty());
    }
  }
}

TEST_CASE("a configuration built by hand meets the same rules") {
  Configuration configuration = sources_of({"graph.impl=layer"}).resolve().configuration;
  const auto sentence = [&configuration] {
    try {
      check(configuration);
    } catch (const ConfigurationError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(sentence().empty());
  configuration.graph.modules = {GraphModule::attn, GraphModule::attn};
  CHECK(sentence().starts_with("G-10: graph.modules = 'attn,attn': "));
  configuration.graph.modules = {GraphModule::mamba};
  CHECK(sentence().starts_with("G-15: graph.modules = mamba: "));
  configuration.graph.modules = {GraphModule::moe, GraphModule::moe_router};
  CHECK(sentence().starts_with("G-12: graph.modules = moe,moe_router: "));
  configuration.graph.impl = GraphImplementation::none;
  CHECK(sentence().starts_with("G-02: graph.modules = moe,moe_router with graph.impl = none: "));
  configuration.graph.modules.clear();
  CHECK(sentence().starts_with("G-17: graph.optimizer = separate with graph.impl = none: "));
  configuration.graph.optimizer = OptimizerPlacement::joined;
  CHECK(sentence().starts_with("G-16: "));
  configuration.graph.optimizer = OptimizerPlacement::eager;
  configuration.parallel.data = 2;
  CHECK(sentence().starts_with("G-18: parallel.data = 2: "));
}

TEST_CASE("every rule of the catalogue of other systems is answered exactly once") {
  std::map<std::string, int> answered;
  const auto count = [&answered](std::string_view numbers) {
    std::istringstream text{std::string(numbers)};
    for (std::string number; std::getline(text >> std::ws, number, ',');) ++answered[number];
  };
  for (const Rule& rule : graph_rules()) count(rule.peers);
  for (const PeerRules& rules : rules_without_meaning()) count(rules.numbers);
  std::map<std::string, int> expected;
  for (int i = 1; i <= 81; ++i) expected["C" + std::to_string(i)] = 1;
  for (int i = 1; i <= 10; ++i)
    if (i != 4) expected["G" + std::to_string(i)] = 1;
  CHECK(answered == expected);
}

TEST_CASE("every rule has a reason, and a change unless it is lifted") {
  std::set<std::string_view> ids;
  for (const Rule& rule : graph_rules()) {
    CAPTURE(rule.id);
    CHECK(ids.insert(rule.id).second);
    CHECK_FALSE(rule.combination.empty());
    CHECK_FALSE(rule.reason.empty());
    CHECK(rule.change.empty() == (rule.outcome == RuleOutcome::lifted));
    CHECK_FALSE((rule.outcome == RuleOutcome::lifted && rule.peers.empty()));
    for (const std::string_view text : {rule.combination, rule.reason, rule.change}) {
      CHECK(text.find_first_of("|\n") == std::string_view::npos);
      CHECK_FALSE(text.ends_with('.'));
    }
  }
}

TEST_CASE("random combinations of graph keys resolve, to themselves, or are refused by a rule") {
  const Assignments pieces = {"graph.impl=none",
                              "graph.impl=layer",
                              "graph.impl=full_iteration",
                              "graph.modules=attn",
                              "graph.modules=mlp,attn",
                              "graph.modules=moe",
                              "graph.modules=moe_preprocess,moe_router",
                              "graph.modules=mamba,moe,moe_router",
                              "graph.modules=",
                              "graph.optimizer=joined",
                              "graph.optimizer=separate",
                              "graph.optimizer=eager",
                              "graph.warmup_steps=0",
                              "graph.validate_every=3",
                              "graph.memory_limit=1GiB",
                              "graph.recapture=true",
                              "graph.buckets=16,32",
                              "graph.buckets=32,1000",
                              "graph.recordings=1",
                              "graph.above_largest=refuse",
                              "graph.checksums=true",
                              "cuda_graph_impl=none",
                              "cuda_graph_impl=local",
                              "cuda_graph_impl=transformer_engine",
                              "cuda_graph_impl=full_iteration",
                              "cuda_graph_impl=unknown",
                              "cuda_graph_scope=attn",
                              "cuda_graph_scope=full",
                              "cuda_graph_scope=full_iteration",
                              "cuda_graph_scope=",
                              "cuda_graph_modules=attn,mlp",
                              "cuda_graph_modules=full,full_iteration",
                              "cuda_graph_modules=attn,attn",
                              "cuda_graph_modules=full_iteration_inference",
                              "cuda_graph_warmup_steps=0",
                              "enable_cuda_graph=true",
                              "enable_cuda_graph=false",
                              "external_cuda_graph=true",
                              "inference_cuda_graph_scope=none",
                              "inference_cuda_graph_scope=layer",
                              "use_te_rng_tracker=true",
                              "parallel.data=2",
                              "parallel.pipeline=2",
                              "parallel.virtual_stages=2",
                              "pipeline_model_parallel_size=2",
                              "num_layers_per_virtual_pipeline_stage=1",
                              "virtual_pipeline_model_parallel_size=1",
                              "train.microbatches=4",
                              "train.recompute=attn",
                              "train.recompute=mlp,full",
                              "recompute_granularity=full",
                              "recompute_granularity=selective",
                              "recompute_modules=core_attn,mlp",
                              "recompute_modules=moe_act",
                              "recompute_method=block",
                              "train.delay_wgrad=true",
                              "delay_wgrad_compute=true",
                              "model.attention_dropout=0.1"};
  std::mt19937 random(17);
  int accepted = 0;
  std::set<std::string> refused_by;
  for (int round = 0; round < 4000; ++round) {
    Assignments chosen;
    const std::size_t count = 1 + random() % 4;
    for (std::size_t i = 0; i < count; ++i) chosen.push_back(pieces[random() % pieces.size()]);
    CAPTURE(joined(chosen));
    ConfigurationSources sources;
    sources.preset("bytes");
    try {
      for (const std::string& assignment : chosen) {
        if (random() % 3 != 0) {
          sources.assignment(assignment);
        } else {
          const std::size_t equals = assignment.find('=');
          sources.flag(assignment.substr(0, equals), assignment.substr(equals + 1), "--flag");
        }
      }
      const ResolvedConfiguration resolved = sources.resolve();
      ++accepted;
      CHECK_NOTHROW(check(resolved.configuration));
      for (const std::string& note : resolved.notes) CHECK(begins_with_id(note));
      const ResolvedConfiguration again =
          ConfigurationSources().json(to_json(resolved.configuration), "printed").resolve();
      CHECK(again.configuration == resolved.configuration);
      CHECK(to_json(again.configuration) == to_json(resolved.configuration));
    } catch (const ConfigurationError& error) {
      CHECK_MESSAGE(begins_with_id(error.what()), error.what());
      refused_by.insert(std::string(error.what()).substr(0, 4));
    }
  }
  CHECK(accepted > 1000);
  CHECK(accepted < 3500);
  CHECK(refused_by.size() >= 14);
}
