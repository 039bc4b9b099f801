// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace encore::model {

/// The text that ships inside the library (see model/data/README.md): 260714 bytes of plain ASCII with Unix
/// line ends. The view stays valid for the whole run.
std::string_view embedded_text() noexcept;

}  // namespace encore::model
