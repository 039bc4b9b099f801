// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/c/configuration.h>
#include <encore/model/files/configuration_sources.hpp>

struct encore_configuration {
  encore::model::ConfigurationSources sources;
};
