// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace encore::model {

/// Throws ConfigurationError unless the value of a scalar that steps read (`clip`, `dropout`, ...) is one that the
/// configuration key of that name allows. Other names pass.
void require_scalar_in_range(std::string_view name, double value);

}  // namespace encore::model
