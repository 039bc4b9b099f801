// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration_sources.hpp>

#include "options.hpp"

namespace encore::command {

/// The configuration that the options describe, checked. `otherwise` is the preset that holds when they name
/// neither a preset, nor a file, nor a checkpoint.
model::ResolvedConfiguration resolve(const ConfigurationOptions& options, std::string_view otherwise);

}  // namespace encore::command
