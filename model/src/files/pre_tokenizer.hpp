// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "text_pattern.hpp"

namespace encore::model {

/// What becomes of the matches of a splitting pattern, as tokenizers names it.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// A step that cuts pieces of text into smaller ones.
struct SplitStep {
  std::optional<TextPattern> pattern;  ///< none: every piece stays whole
  SplitBehavior behavior = SplitBehavior::isolated;
  bool inverted = false;      ///< what lies between the matches counts as the matches
  bool prefix_space = false;  ///< first, a piece that does not begin with a space gets one
};

/// Cuts text into the words that byte-pair encoding sees, by one step after another. Holds working memory.
class WordSplitter {
 public:
  using WordFunction = std::function<void(std::string_view)>;

  explicit WordSplitter(const std::vector<SplitStep>& steps);
  /// Calls `word` for the words of the text, valid UTF-8, in their order.
  void split(std::string_view text, const WordFunction& word);

 private:
  void step(std::size_t index, std::string_view text, const WordFunction& word);
  void isolate(std::size_t index, std::string_view text, const WordFunction& word);
  void split_otherwise(std::size_t index, std::string_view text, const WordFunction& word);

  const std::vector<SplitStep>& steps_;
  std::vector<std::optional<PatternMatcher>> matchers_;
};

}  // namespace encore::model
