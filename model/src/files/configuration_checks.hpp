// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <string>

namespace encore::model {

[[noreturn]] void refuse_model(const std::string& sentence);

/// What is recorded, and what is computed again: by the rules with ids. The model must be checked.
void check_rules(const Configuration& configuration);

}  // namespace encore::model
