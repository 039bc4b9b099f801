// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace encore::graph {

/// A rule that a step is held to while it runs. Errors begin with the id.
struct ContractRule {
  std::string_view id;
  std::string_view text;
};

inline constexpr ContractRule rule_buffer{
    "R-01", "the shape, type or address of a buffer or batch differs from what was captured"};
inline constexpr ContractRule rule_microbatches{"R-02", "another number of microbatches than was captured"};
inline constexpr ContractRule rule_program{
    "R-03", "segments or buffers were added to a program after it was captured"};
inline constexpr ContractRule rule_scalar{
    "R-04", "a scalar of an unknown name, or one that a recording cannot re-read"};
inline constexpr ContractRule rule_released{
    "R-05", "a replay after the graphs were reset or their communicator closed"};
inline constexpr ContractRule rule_host_work{
    "R-06", "a host copy, synchronization or other host work inside a recorded run"};
inline constexpr ContractRule rule_length{"R-07", "a sequence longer than the largest recorded one"};
inline constexpr ContractRule rule_memory{"R-08", "more memory than was planned or is allowed"};
inline constexpr ContractRule rule_recordings{
    "R-09", "a batch of another length when graph.recordings are all taken"};

inline constexpr ContractRule rule_budget{"R-10",
                                          "more rows of experts in a step than train.expert_budget keeps"};

inline constexpr ContractRule contract_rules[] = {
    rule_buffer,    rule_microbatches, rule_program, rule_scalar,     rule_released,
    rule_host_work, rule_length,       rule_memory,  rule_recordings, rule_budget};

}  // namespace encore::graph
