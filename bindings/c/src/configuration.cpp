// SPDX-License-Identifier: Apache-2.0
#include "configuration.hpp"

#include <encore/model/checkpoint.hpp>

#include <sstream>

#include "error.hpp"

using encore::c::guarded;
using encore::c::require_pointer;

namespace {

/// Changes a copy, so that a source that is refused leaves the others as they were.
template <class Change>
int add_source(encore_configuration* configuration, const char* argument, const char* name,
               const Change& change) {
  return guarded([&] {
    require_pointer(configuration, "configuration");
    require_pointer(argument, name);
    encore::model::ConfigurationSources changed = configuration->sources;
    change(changed);
    configuration->sources = std::move(changed);
  });
}

}  // namespace

extern "C" {

int encore_configuration_create(encore_configuration** configuration) {
  return guarded([&] {
    require_pointer(configuration, "configuration");
    *configuration = new encore_configuration;
  });
}

int encore_configuration_destroy(encore_configuration* configuration) {
  delete configuration;
  return ENCORE_OK;
}

int encore_configuration_preset(encore_configuration* configuration, const char* name) {
  return add_source(configuration, name, "name", [&](auto& sources) { sources.preset(name); });
}

int encore_configuration_file(encore_configuration* configuration, const char* path) {
  return add_source(configuration, path, "path", [&](auto& sources) { sources.file(path); });
}

int encore_configuration_json(encore_configuration* configuration, const char* text) {
  return add_source(configuration, text, "text", [&](auto& sources) { sources.json(text, "the JSON text"); });
}

int encore_configuration_checkpoint(encore_configuration* configuration, const char* path) {
  return add_source(configuration, path, "path", [&](auto& sources) {
    sources.checkpoint(encore::model::read_model_configuration(path), path);
  });
}

int encore_configuration_set(encore_configuration* configuration, const char* assignments) {
  return add_source(configuration, assignments, "assignments", [&](auto& sources) {
    std::istringstream words(assignments);
    for (std::string word; words >> word;) sources.assignment(word);
  });
}

int encore_configuration_text(const encore_configuration* configuration, char* text, size_t size,
                              size_t* length) {
  return guarded([&] {
    require_pointer(configuration, "configuration");
    encore::c::write_text(encore::model::to_json(configuration->sources.resolve().configuration), text, size,
                          length);
  });
}

int encore_configuration_notes(const encore_configuration* configuration, char* text, size_t size,
                               size_t* length) {
  return guarded([&] {
    require_pointer(configuration, "configuration");
    std::string lines;
    for (const std::string& note : configuration->sources.resolve().notes) lines += note + '\n';
    encore::c::write_text(lines, text, size, length);
  });
}

}  // extern "C"
