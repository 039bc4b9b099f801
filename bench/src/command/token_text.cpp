// SPDX-License-Identifier: Apache-2.0
#include "token_text.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <charconv>

namespace encore::command {

std::vector<std::int32_t> TokenText::encode(std::string_view text, const std::string& source) const {
  if (tokenizer_) return tokenizer_->encode(text, {.add_prefix = true});
  std::vector<std::int32_t> tokens;
  if (form_ == Form::bytes) {
    for (const char character : text) tokens.push_back(static_cast<unsigned char>(character));
    return tokens;
  }
  constexpr std::string_view between = " \t\r\n,";
  for (std::size_t begin = text.find_first_not_of(between); begin != std::string_view::npos;
       begin = text.find_first_not_of(between)) {
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(between));
    std::int32_t token = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || end != word.data() + word.size() || token < 0 || token >= vocabulary_)
      throw InputFileError(fmt::format(
          "{} holds '{}' where a token id below {} should be: a model of other than 256 tokens reads "
          "ids, text with --tokenizer, or bytes with --bytes",
          source, word.substr(0, 40), vocabulary_));
    tokens.push_back(token);
    text.remove_prefix(word.size());
  }
  return tokens;
}

std::string TokenText::decode(const std::vector<std::int32_t>& tokens, bool begins) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (form_ == Form::numbers) {
      text += fmt::format("{}{}", begins && text.empty() ? "" : " ", token);
    } else if (tokenizer_ && tokenizer_->contains(token)) {
      text += tokenizer_->token(token);
    } else if (!tokenizer_ && token < 256) {
      text += static_cast<char>(token);
    } else {  // A model may have more tokens than its text has.
      text += fmt::format("<{}>", token);
    }
  }
  return text;
}

std::vector<std::int32_t> TokenText::beginning() const {
  if (form_ == Form::numbers) return {0};
  if (tokenizer_ && tokenizer_->begin_of_text()) return {*tokenizer_->begin_of_text()};
  return encode("\n", "a new line");
}

std::vector<std::int32_t> TokenText::ends() const {
  if (!tokenizer_) return {};
  return {tokenizer_->end_of_text().begin(), tokenizer_->end_of_text().end()};
}

}  // namespace encore::command
