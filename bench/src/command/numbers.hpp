// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace encore::command {

/// `93.2 MiB`.
std::string bytes_text(double bytes);
/// `840`, `12.3 thousand`, `124 million`, `1.2 billion`.
std::string count_text(std::int64_t count);
/// `41 s`, `3:07`, `2:03:10`.
std::string duration_text(double seconds);

}  // namespace encore::command
