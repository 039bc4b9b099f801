// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace encore::model {

/// A regular expression over Unicode text, as tokenizer.json files hold it: written for Oniguruma with Ruby's syntax,
/// run by PCRE2. Immutable.
class TextPattern {
 public:
  /// `where` names the field and the file in errors. Throws ConfigurationError for what the two engines understand
  /// differently, for what PCRE2 refuses, and in a build without PCRE2.
  TextPattern(std::string_view expression, std::string where);

  struct Compiled;

 private:
  friend class PatternMatcher;
  std::shared_ptr<const Compiled> compiled_;
};

/// Finds the matches of a pattern in one text after another; holds the working memory for it.
class PatternMatcher {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
  };

  explicit PatternMatcher(const TextPattern& pattern);
  ~PatternMatcher();
  PatternMatcher(PatternMatcher&&) noexcept;

  /// The text, valid UTF-8, in which `next` looks; it must live as long.
  void begin(std::string_view text);
  /// The next match that is not empty. Throws InputFileError where PCRE2 gives up at one of its limits.
  std::optional<Match> next();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

/// The expression in PCRE2's syntax, with the meaning it has in Oniguruma. Throws ConfigurationError for a construct
/// that this version does not translate.
std::string translated_pattern(std::string_view expression, const std::string& where);

}  // namespace encore::model
