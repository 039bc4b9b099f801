// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <nlohmann/json_fwd.hpp>

#include "options.hpp"

namespace encore::command {

/// The buckets that a file of lengths suggests, with their coverage and waste for every number of them. Throws
/// InputFileError and ConfigurationError.
nlohmann::ordered_json propose_buckets(const PlanOptions& options, const model::Configuration& configuration);

/// The same for people.
std::string buckets_text(const nlohmann::ordered_json& proposal);

}  // namespace encore::command
