// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/outline.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace encore::graph {

/// What a recording holds for good: the program's buffers and segments, and where each buffer lies. A replay with
/// anything else would compute something else without saying so.
struct Contract {
  std::uint64_t signature = 0;
  std::size_t buffers = 0;
  std::size_t segments = 0;
  std::vector<const std::byte*> addresses;  ///< by buffer
};

Contract contract_of(const Outline& outline, std::vector<const std::byte*> addresses);

/// Everything in which `now` differs from what was captured, as clauses that begin with the rule's id. Addresses are
/// compared for the buffers that some segment uses.
std::vector<std::string> differences(const Outline& outline, const Contract& captured, const Contract& now);

}  // namespace encore::graph
