// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace encore::command {

/// How tokens are shown and read: as bytes, or as numbers separated by blanks.
enum class TokenForm { bytes, numbers };

/// Between a person's text and a model's tokens.
class TokenText {
 public:
  TokenText(TokenForm form, std::int64_t vocabulary) : form_(form), vocabulary_(vocabulary) {}

  /// Throws InputFileError naming `source` and what in it is no token.
  std::vector<std::int32_t> encode(std::string_view text, const std::string& source) const;
  /// What to print of these tokens; `begins`: nothing was printed before.
  std::string decode(const std::vector<std::int32_t>& tokens, bool begins) const;
  /// What a text begins with where nobody says.
  std::string default_prompt() const { return form_ == TokenForm::bytes ? "\n" : "0"; }

 private:
  TokenForm form_;
  std::int64_t vocabulary_;
};

}  // namespace encore::command
