// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore plan --cluster`: what each stage's ranks keep, what they tell each other in a step and how long that takes over
/// the cluster's links, and how long stages wait. Runs nothing. Returns the exit code: that of too little memory where a
/// rank does not fit into a GPU. Throws ConfigurationError for more ranks than GPUs, InputFileError for the description.
int print_cluster_plan(const PlanOptions& options, const model::Configuration& configuration,
                       Console& console);

}  // namespace encore::command
