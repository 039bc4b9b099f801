// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/outline.hpp>

#include <cstddef>
#include <limits>
#include <vector>

namespace encore::graph {

/// The segments between which (both included) a buffer is in use.
struct Lifetime {
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

  std::size_t first_write = never;
  std::size_t last_use = 0;
  std::size_t kept_until = 0;  ///< last_use, or the segment behind it where the buffer lingers

  bool used() const { return first_write != never; }
};

/// Of every buffer, by its id. Throws InternalError naming buffer and segment when an activation is read
/// before any segment wrote it.
std::vector<Lifetime> lifetimes_of(const Outline& outline);

}  // namespace encore::graph
