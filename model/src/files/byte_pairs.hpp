// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace encore::model {

/// A pair of tokens that becomes one; of several pairs in a word the one with the lowest rank goes first.
struct PairMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t merged;
};

/// The merges by their pair: open addressing, the number of slots a power of two.
class MergeTable {
 public:
  struct Entry {
    std::uint64_t pair;
    std::int32_t rank;
    std::int32_t merged;
  };

  /// Ranks are the places in `merges`.
  explicit MergeTable(std::span<const PairMerge> merges);
  /// Null if the pair does not merge.
  const Entry* find(std::int32_t left, std::int32_t right) const noexcept;

 private:
  std::size_t slot_of(std::uint64_t pair) const noexcept;
  std::vector<Entry> slots_;
};

/// Hashes a std::string_view, so that a map of std::string is searched without making one.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};
using IdsByText = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// What byte-pair encoding needs of a tokenizer.json.
struct BytePairModel {
  std::vector<std::int32_t> byte_ids;  ///< of the 256 bytes; -1 for one that has no token
  std::optional<std::int32_t> unknown;
  bool fuses_unknown = false;
  bool whole_words_first =
      false;        ///< ignore_merges: a word of the vocabulary is not put together from its merges
  IdsByText words;  ///< tokens by their bytes
  MergeTable merges{std::span<const PairMerge>()};
  std::string where;  ///< for errors
};

/// Encodes words with a model; holds the working memory, and what words became.
class BytePairEncoder {
 public:
  explicit BytePairEncoder(const BytePairModel& model) : model_(model) {}

  /// Appends the tokens of the word. Throws InputFileError for a byte without token.
  void encode(std::string_view word, std::vector<std::int32_t>& ids);

 private:
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;  ///< -1: none
    std::int32_t next;      ///< -1: none
  };
  /// Ordered so that std::priority_queue gives the lowest rank first, and of equal ones the leftmost.
  struct Candidate {
    std::int32_t rank;
    std::int32_t place;
    std::int32_t merged;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  struct Range {
    std::uint32_t begin;
    std::uint32_t count;
  };

  void put_together(std::string_view word, std::vector<std::int32_t>& ids);
  void begin_with_bytes(std::string_view word);
  void propose(std::int32_t place);
  void remember(std::string_view word, std::span<const std::int32_t> ids);

  const BytePairModel& model_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> candidates_;
  std::unordered_map<std::string, Range, TextHash, std::equal_to<>> known_;
  std::vector<std::int32_t> known_ids_;
};

}  // namespace encore::model
