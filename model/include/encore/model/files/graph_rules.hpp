// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace encore::model {

/// Rules about what is recorded, in the order of their ids. New ones go to the end: an id keeps its meaning.
enum class GraphRule : std::uint8_t {
  unknown_implementation,
  modules_without_layer,
  full_beside_modules,
  full_iteration_of_transformer_engine,
  inference_scope,
  full_iteration_beside_modules,
  two_forms,
  legacy_flag_beside_implementation,
  modules_without_implementation,
  repeated_module,
  unknown_module,
  moe_beside_router,
  preprocess_without_router,
  moe_without_experts,
  mamba_without_layers,
  joined_without_full_iteration,
  separate_without_graphs,
  not_dealt_out,
  modules_cleared,
  detail_overruled,
  older_spelling,
  local_without_inference,
  random_tracker,
  no_warmup,
  validation_without_graphs,
  recompute_of_recorded_part,
  random_numbers_of_recompute,
  delayed_weight_gradients,
  finite_check,
  recorded_optimizer,
  per_layer_graphs,
  reuse_without_order,
  several_models,
  results_are_copies,
  bucket_beyond_sequence,
  buckets_beyond_recordings,
  full_beside_recompute_modules,
  unknown_recompute_module,
  recompute_modules_without_selective,
  recompute_of_layer_groups,
  whole_attention_recomputed,
  virtual_stages_without_pipeline,
  layers_not_divided,
  microbatches_not_divided,
  capacity_beside_budget,
  expert_options_without_experts,
  recompute_without_layers,
  module_without_layers,
  dropless_experts,
  expert_rows_within_budget,
  tuned_experts_on_tensor_ranks,
};

enum class RuleOutcome : std::uint8_t {
  refused,         ///< when the configuration is resolved, or checked
  refused_at_run,  ///< when a step is recorded or replayed
  noted,           ///< changed or accepted with a note
  lifted           ///< refused or silently changed by others, works here
};
std::string_view name_of(RuleOutcome outcome) noexcept;

struct Rule {
  std::string_view id;  ///< `G-11`; `R-01` for those that hold while a step runs
  RuleOutcome outcome;
  std::string_view combination;
  std::string_view reason;
  std::string_view
      change;  ///< the smallest change that is accepted; for a note, the one that makes it go away
  std::string_view peers;  ///< the rules of other systems that it answers: `C12, C70`
};

/// Every rule: those of `GraphRule` in their order, then those of the replay contract.
std::span<const Rule> graph_rules();
const Rule& graph_rule(GraphRule rule);

/// Rules of other systems that have no meaning here.
struct PeerRules {
  std::string_view numbers;  ///< `C24, C25`
  std::string_view subject;
  std::string_view reason;  ///< why not
};
std::span<const PeerRules> rules_without_meaning();

/// `G-11: <what>: <reason>; <change><suffix>`, where `what` names the settings with their values.
std::string refusal(GraphRule rule, std::string_view what, std::string_view suffix = {});
/// Throws that sentence as a ConfigurationError.
[[noreturn]] void refuse(GraphRule rule, std::string_view what, std::string_view suffix = {});
/// `G-11: <what>: <reason>`, a note of a ResolvedConfiguration.
std::string note(GraphRule rule, std::string_view what);

/// The page docs/refusals.md.
std::string graph_rules_as_markdown();

}  // namespace encore::model
