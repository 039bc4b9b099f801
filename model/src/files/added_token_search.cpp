// SPDX-License-Identifier: Apache-2.0
#include "added_token_search.hpp"

#include <algorithm>
#include <utility>

#include "utf8.hpp"

namespace encore::model {
namespace {

/// Where the white space begins that ends `text`.
std::size_t begin_of_last_space(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character character = last_utf8_character(text);
    if (!is_white_space(character.value)) break;
    text.remove_suffix(character.length);
  }
  return text.size();
}

/// How much white space begins `text`.
std::size_t first_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Character character = utf8_character(text.substr(length));
    if (!is_white_space(character.value)) break;
    length += character.length;
  }
  return length;
}

}  // namespace

AddedTokenSearch::AddedTokenSearch(std::vector<AddedToken> tokens, const std::string& where)
    : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].content.empty()) continue;
    std::uint32_t node = 0;
    for (const char byte : tokens_[i].content) node = child_made(node, static_cast<unsigned char>(byte));
    nodes_[node].token = static_cast<std::int32_t>(i);
    begins_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
  }
  // Word characters as Rust's regex has them: those of Unicode TS 18, which include the two joiners.
  if (std::ranges::any_of(tokens_, &AddedToken::single_word))
    word_.emplace(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])",
                  "single_word in added_tokens of " + where);
}

std::uint32_t AddedTokenSearch::child(std::uint32_t node, unsigned char byte) const {
  for (const auto& [label, target] : nodes_[node].children)
    if (label == byte) return target;
  return 0;
}

std::uint32_t AddedTokenSearch::child_made(std::uint32_t node, unsigned char byte) {
  if (const std::uint32_t found = child(node, byte); found != 0) return found;
  const auto made = static_cast<std::uint32_t>(nodes_.size());
  nodes_[node].children.emplace_back(byte, made);
  nodes_.emplace_back();
  return made;
}

const AddedToken* AddedTokenSearch::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  std::uint32_t node = 0;
  for (const char byte : text) {
    node = child(node, static_cast<unsigned char>(byte));
    if (node == 0) break;
    if (nodes_[node].token >= 0) longest = &tokens_[static_cast<std::size_t>(nodes_[node].token)];
  }
  return longest;
}

bool AddedTokenSearch::is_word(std::string_view character) const {
  PatternMatcher matcher(*word_);
  matcher.begin(character);
  return matcher.next().has_value();
}

bool AddedTokenSearch::touches_word(std::string_view before, std::string_view after) const {
  return is_word(before.substr(before.size() - last_utf8_character(before).length)) ||
         is_word(after.substr(0, utf8_character(after).length));
}

// As AddedVocabulary::find_matches of tokenizers: a match that is passed over hides those that overlap with it.
void AddedTokenSearch::split(std::string_view text, bool recognize_specials,
                             const PieceFunction& piece) const {
  std::size_t done = 0;
  for (std::size_t place = 0; place < text.size();) {
    const AddedToken* const token =
        begins_[static_cast<unsigned char>(text[place])] ? longest_at(text.substr(place)) : nullptr;
    if (token == nullptr) {
      ++place;
      continue;
    }
    std::size_t begin = place, end = place + token->content.size();
    place = end;
    if (token->special && !recognize_specials) continue;
    if (token->single_word && touches_word(text.substr(0, begin), text.substr(end))) continue;
    if (token->left_strip) begin = std::max(begin_of_last_space(text.substr(0, begin)), done);
    if (token->right_strip) end += first_space(text.substr(end));
    if (begin > done) piece({}, text.substr(done, begin - done));
    piece(token->id, text.substr(begin, end - begin));
    done = end;
  }
  if (done < text.size()) piece({}, text.substr(done));
}

}  // namespace encore::model
