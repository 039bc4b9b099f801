// SPDX-License-Identifier: Apache-2.0
#include "pre_tokenizer.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

namespace encore::model {
namespace {

struct Piece {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

std::vector<Piece> pieces_of(PatternMatcher& matcher, std::string_view text, bool inverted) {
  std::vector<Piece> pieces;
  std::size_t done = 0;
  matcher.begin(text);
  while (const auto match = matcher.next()) {
    if (match->begin > done) pieces.push_back({done, match->begin, inverted});
    pieces.push_back({match->begin, match->end, !inverted});
    done = match->end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), inverted});
  return pieces;
}

/// Joins each match with the piece before it, unless that is a match too. Written for either direction.
template <class Join>
std::vector<Piece> with_neighbors(const std::vector<Piece>& pieces, Join join) {
  std::vector<Piece> result;
  bool previous = false;
  for (const Piece& piece : pieces) {
    if (piece.is_match && !previous && !result.empty()) {
      join(result.back(), piece);
    } else {
      result.push_back(piece);
    }
    previous = piece.is_match;
  }
  return result;
}

// As NormalizedString::split of tokenizers.
std::vector<Piece> after(std::vector<Piece> pieces, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::isolated: break;
    case SplitBehavior::removed:
      std::erase_if(pieces, [](const Piece& piece) { return piece.is_match; });
      break;
    case SplitBehavior::merged_with_previous:
      return with_neighbors(pieces, [](Piece& joined, const Piece& piece) { joined.end = piece.end; });
    case SplitBehavior::merged_with_next:
      std::ranges::reverse(pieces);
      pieces = with_neighbors(pieces, [](Piece& joined, const Piece& piece) { joined.begin = piece.begin; });
      std::ranges::reverse(pieces);
      break;
    case SplitBehavior::contiguous: {
      std::vector<Piece> result;
      for (const Piece& piece : pieces) {
        if (!result.empty() && result.back().is_match == piece.is_match) {
          result.back().end = piece.end;
        } else {
          result.push_back(piece);
        }
      }
      return result;
    }
  }
  return pieces;
}

}  // namespace

WordSplitter::WordSplitter(const std::vector<SplitStep>& steps) : steps_(steps), matchers_(steps.size()) {
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i].pattern) matchers_[i].emplace(*steps[i].pattern);
}

void WordSplitter::split(std::string_view text, const WordFunction& word) {
  if (!text.empty()) step(0, text, word);
}

void WordSplitter::step(std::size_t index, std::string_view text, const WordFunction& word) {
  if (index == steps_.size()) return word(text);
  const SplitStep& current = steps_[index];
  std::string prefixed;
  if (current.prefix_space && !text.starts_with(' ')) {
    prefixed.reserve(text.size() + 1);
    prefixed += ' ';
    prefixed += text;
    text = prefixed;
  }
  if (!current.pattern) return step(index + 1, text, word);
  if (current.behavior == SplitBehavior::isolated) return isolate(index, text, word);
  split_otherwise(index, text, word);
}

void WordSplitter::isolate(std::size_t index, std::string_view text, const WordFunction& word) {
  PatternMatcher& matcher = *matchers_[index];
  std::size_t done = 0;
  matcher.begin(text);
  while (const auto match = matcher.next()) {
    if (match->begin > done) step(index + 1, text.substr(done, match->begin - done), word);
    step(index + 1, text.substr(match->begin, match->end - match->begin), word);
    done = match->end;
  }
  if (done < text.size()) step(index + 1, text.substr(done), word);
}

void WordSplitter::split_otherwise(std::size_t index, std::string_view text, const WordFunction& word) {
  const SplitStep& current = steps_[index];
  for (const Piece& piece : after(pieces_of(*matchers_[index], text, current.inverted), current.behavior))
    step(index + 1, text.substr(piece.begin, piece.end - piece.begin), word);
}

}  // namespace encore::model
