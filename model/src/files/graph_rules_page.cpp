// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/graph_rules.hpp>

#include <fmt/format.h>

#include <array>
#include <utility>

namespace encore::model {
namespace {

constexpr std::string_view introduction = R"(# What is refused, noted and lifted

<!-- Written by `encore info --rules`; a test keeps this page equal to the code. -->

Every rule about what can be recorded has an id, and the error or note that applies it begins with that id. Values are
checked once, on the resolved configuration, whichever spelling they came in: keys of this project, Megatron's names, files,
flags.

The last column and the list at the end answer the rules of Megatron-Core (C1 to C51 when it is configured), of Megatron-Core
and Transformer Engine (C52 to C69 when they capture and replay) and of Megatron Bridge (the rest of C), and what is missing
among them (G1 to G10; there is no G4), by reading their sources in August and September 2026.
)";

constexpr std::array<std::pair<RuleOutcome, std::string_view>, 4> sections = {{
    {RuleOutcome::refused,
     "\n## Refused\n\nA ConfigurationError (exit code 2) before any device is touched. Its sentence ends "
     "with the "
     "smallest change that is accepted.\n\n"},
    {RuleOutcome::refused_at_run,
     "\n## Refused while a step runs\n\nA ReplayContractError, CaptureError or OutOfMemoryError (exit code "
     "4). Weights, "
     "optimizer state and random positions stay as they were before the step.\n\n"},
    {RuleOutcome::noted,
     "\n## Noted\n\nAccepted, and said: `encore train` and `encore info` print a line `note: ...`; in the "
     "library, "
     "`ResolvedConfiguration::notes`.\n\n"},
    {RuleOutcome::lifted, "\n## Lifted\n\nRefused, or silently changed, by others; works here.\n\n"},
}};

std::string or_dash(std::string_view text) { return std::string(text.empty() ? "-" : text); }

std::string table_of(RuleOutcome outcome) {
  const bool has_change = outcome != RuleOutcome::lifted;
  std::string text =
      has_change ? "| Id | What | Why | Smallest change | Answers |\n| --- | --- | --- | --- | --- |\n"
                 : "| Id | What | Why it works | Answers |\n| --- | --- | --- | --- |\n";
  for (const Rule& rule : graph_rules()) {
    if (rule.outcome != outcome) continue;
    text += fmt::format("| {} | {} | {} |", rule.id, rule.combination, rule.reason);
    if (has_change) text += fmt::format(" {} |", rule.change);
    text += fmt::format(" {} |\n", or_dash(rule.peers));
  }
  return text;
}

}  // namespace

std::string graph_rules_as_markdown() {
  std::string text(introduction);
  for (const auto& [outcome, heading] : sections) {
    text += heading;
    text += table_of(outcome);
  }
  text +=
      "\n## Rules of others without a meaning here\n\n| Their rules | About | Why not |\n| --- | --- | --- "
      "|\n";
  for (const PeerRules& rules : rules_without_meaning())
    text += fmt::format("| {} | {} | {} |\n", rules.numbers, rules.subject, rules.reason);
  return text;
}

}  // namespace encore::model
