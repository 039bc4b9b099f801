// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace encore::model {

/// Unicode's normalization forms (UAX 15).
enum class NormalizationForm { nfc, nfd, nfkc, nfkd };

/// Throws ConfigurationError in a build without utf8proc; `where` names the field and the file.
void require_normalization(const std::string& where);

/// `text`, which is valid UTF-8, in the form.
std::string normalized_text(std::string_view text, NormalizationForm form);

}  // namespace encore::model
