// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/scalar_ranges.hpp>

#include "configuration_table.hpp"

namespace encore::model {

void require_scalar_in_range(std::string_view name, double value) {
  for (const std::string_view section : {"train.", "model."})
    if (const Key* key = find_key(std::string(section) + std::string(name));
        key && key->kind == KeyKind::real)
      check_value(*key, value, "set_scalar");
}

}  // namespace encore::model
