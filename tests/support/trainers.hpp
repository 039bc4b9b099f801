// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tiny_models.hpp"

#include <encore/backend/runtime.hpp>

#include <string>
#include <vector>

namespace encore::tests {

/// The backends of this build by the names that the configuration uses.
inline std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const backend::Backend backend : backend::built_backends())
    names.emplace_back(backend::name_of(backend));
  return names;
}

}  // namespace encore::tests
