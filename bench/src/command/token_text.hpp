// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/tokenizer.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace encore::command {

/// Between a person's text and a model's tokens: bytes, numbers separated by blanks, or what a tokenizer says.
class TokenText {
 public:
  enum class Form { bytes, numbers, tokenizer };

  /// Bytes or numbers.
  TokenText(Form form, std::int64_t vocabulary) : form_(form), vocabulary_(vocabulary) {}
  explicit TokenText(model::Tokenizer tokenizer)
      : form_(Form::tokenizer), vocabulary_(tokenizer.vocabulary_size()), tokenizer_(std::move(tokenizer)) {}

  /// The tokens of a text that goes on: with what its tokenizer puts before a text, and not what it puts behind.
  /// Throws InputFileError naming `source` and what in it is no token.
  std::vector<std::int32_t> encode(std::string_view text, const std::string& source) const;
  /// What to print of these tokens, bytes that may end within a character; `begins`: nothing was printed before.
  std::string decode(const std::vector<std::int32_t>& tokens, bool begins) const;
  /// What a text begins with where nobody says.
  std::vector<std::int32_t> beginning() const;
  /// Tokens that end a text.
  std::vector<std::int32_t> ends() const;

 private:
  Form form_;
  std::int64_t vocabulary_;
  std::optional<model::Tokenizer> tokenizer_;
};

}  // namespace encore::command
