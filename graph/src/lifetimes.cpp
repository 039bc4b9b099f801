// SPDX-License-Identifier: Apache-2.0
#include "lifetimes.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>

namespace encore::graph {

std::vector<Lifetime> lifetimes_of(const Outline& outline) {
  std::vector<Lifetime> lifetimes(outline.buffers().size());
  const auto is_activation = [&](BufferId id) { return outline.buffer(id).kind == BufferKind::activation; };
  for (std::size_t index = 0; index < outline.segments().size(); ++index) {
    const Segment& segment = outline.segments()[index];
    for (const BufferId id : segment.reads) {
      Lifetime& lifetime = lifetimes[static_cast<std::size_t>(id)];
      if (is_activation(id) && !lifetime.used())
        throw InternalError("segment '" + segment.name + "' reads '" + outline.buffer(id).name +
                            "' before any segment wrote it");
      lifetime.last_use = index;
    }
    for (const BufferId id : segment.writes) {
      Lifetime& lifetime = lifetimes[static_cast<std::size_t>(id)];
      lifetime.first_write = std::min(lifetime.first_write, index);
      lifetime.last_use = index;
    }
    for (const BufferId id : segment.lingers) {
      Lifetime& lifetime = lifetimes[static_cast<std::size_t>(id)];
      lifetime.kept_until = std::min(index + 1, outline.segments().size() - 1);
    }
  }
  for (Lifetime& lifetime : lifetimes) lifetime.kept_until = std::max(lifetime.kept_until, lifetime.last_use);
  return lifetimes;
}

}  // namespace encore::graph
