// SPDX-License-Identifier: Apache-2.0
#include "configure.hpp"

#include <encore/model/checkpoint.hpp>

namespace encore::command {

model::ResolvedConfiguration resolve(const ConfigurationOptions& options, std::string_view otherwise) {
  model::ConfigurationSources sources;
  if (options.preset) {
    sources.preset(*options.preset);
  } else if (!options.file && !options.load) {
    sources.preset(otherwise);
  }
  if (options.load)
    sources.checkpoint(model::read_model_configuration(*options.load), options.load->native());
  if (options.file) sources.file(*options.file);
  for (const std::string& assignment : options.assignments) sources.assignment(assignment);
  for (const KeyFlag& flag : options.flags) sources.flag(flag.key, flag.value, flag.flag);
  return sources.resolve();
}

}  // namespace encore::command
