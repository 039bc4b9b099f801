// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/graph_rules.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "graph_rule_cases.hpp"

using namespace encore::model;
using encore::ConfigurationError;

namespace {

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

std::set<std::string_view> ids_of(RuleOutcome outcome) {
  std::set<std::string_view> ids;
  for (const Rule& rule : graph_rules())
    if (rule.outcome == outcome) ids.insert(rule.id);
  return ids;
}

}  // namespace

TEST_CASE("each refusal names its rule, the reason and a change, and accepts the settings after the change") {
  std::set<std::string_view> seen;
  std::vector<RuleCase> cases = refused_cases();
  cases.insert(cases.end(), refused_part_cases().begin(), refused_part_cases().end());
  for (const auto& [rule, meets, changed] : cases) {
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
  configuration.parallel.tensor = 3;
  CHECK(sentence().starts_with("G-18: parallel.tensor = 3 with model.heads = "));
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
