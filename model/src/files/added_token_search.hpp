// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/tokenizer.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text_pattern.hpp"

namespace encore::model {

using PieceFunction = std::function<void(std::optional<std::int32_t>, std::string_view)>;

/// Finds added tokens in a text: the leftmost, and of several that begin there the longest.
class AddedTokenSearch {
 public:
  /// Some token is `single_word`: then PCRE2 is needed, which `where` says in errors.
  AddedTokenSearch(std::vector<AddedToken> tokens, const std::string& where);

  /// Calls `piece` for the pieces of the text in their order: those of an added token with its id, others without.
  void split(std::string_view text, bool recognize_specials, const PieceFunction& piece) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;
  bool touches_word(std::string_view before, std::string_view after) const;
  bool is_word(std::string_view character) const;

  /// Of a trie over the bytes of the contents; node 0 is its root.
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
    std::int32_t token = -1;  ///< the place in tokens_ of the one that ends here
  };
  std::uint32_t child(std::uint32_t node, unsigned char byte) const;  ///< 0: none
  std::uint32_t child_made(std::uint32_t node, unsigned char byte);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};  ///< whether some content begins with the byte
  std::optional<TextPattern> word_;
};

}  // namespace encore::model
