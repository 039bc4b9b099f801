// SPDX-License-Identifier: Apache-2.0
#include "byte_pairs.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <bit>
#include <limits>

namespace encore::model {
namespace {

constexpr std::uint64_t no_pair = std::numeric_limits<std::uint64_t>::max();

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::span<const PairMerge> merges)
    : slots_(std::bit_ceil(2 * merges.size() + 2), Entry{no_pair, 0, 0}) {
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    std::size_t slot = slot_of(pair);
    while (slots_[slot].pair != no_pair && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = {pair, static_cast<std::int32_t>(rank), merges[rank].merged};
  }
}

std::size_t MergeTable::slot_of(std::uint64_t pair) const noexcept {
  // Fibonacci hashing: the upper bits of the product depend on all bits of the pair.
  return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15ULL) >> 32) & (slots_.size() - 1);
}

const MergeTable::Entry* MergeTable::find(std::int32_t left, std::int32_t right) const noexcept {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t slot = slot_of(pair);; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].pair == pair) return &slots_[slot];
    if (slots_[slot].pair == no_pair) return nullptr;
  }
}

void BytePairEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) {
  if (word.size() == 1 && !model_.unknown) {
    if (const std::int32_t id = model_.byte_ids[static_cast<unsigned char>(word[0])]; id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  if (const auto found = known_.find(word); found != known_.end()) {
    const auto begin = known_ids_.begin() + static_cast<std::ptrdiff_t>(found->second.begin);
    ids.insert(ids.end(), begin, begin + static_cast<std::ptrdiff_t>(found->second.count));
    return;
  }
  const std::size_t before = ids.size();
  const auto whole = model_.whole_words_first ? model_.words.find(word) : model_.words.end();
  if (whole != model_.words.end()) {
    ids.push_back(whole->second);
  } else {
    put_together(word, ids);
  }
  remember(word, std::span(ids).subspan(before));
}

void BytePairEncoder::remember(std::string_view word, std::span<const std::int32_t> ids) {
  constexpr std::size_t longest_word = 64, most_words = std::size_t{1} << 18;
  if (word.size() > longest_word || known_.size() >= most_words) return;
  known_.emplace(
      word, Range{static_cast<std::uint32_t>(known_ids_.size()), static_cast<std::uint32_t>(ids.size())});
  known_ids_.insert(known_ids_.end(), ids.begin(), ids.end());
}

void BytePairEncoder::begin_with_bytes(std::string_view word) {
  symbols_.clear();
  bool was_unknown = false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    std::int32_t id = model_.byte_ids[byte];
    const bool is_unknown = id < 0;
    if (is_unknown) {
      if (!model_.unknown)
        throw InputFileError(
            fmt::format("{} has no token for the byte 0x{:02x} and names no unk_token", model_.where, byte));
      id = *model_.unknown;
    }
    if (!(is_unknown && was_unknown && model_.fuses_unknown)) {
      const auto place = static_cast<std::int32_t>(symbols_.size());
      symbols_.push_back({id, place - 1, place + 1});
    }
    was_unknown = is_unknown;
  }
  symbols_.back().next = -1;
}

void BytePairEncoder::propose(std::int32_t place) {
  if (place < 0) return;
  const Symbol& symbol = symbols_[static_cast<std::size_t>(place)];
  if (symbol.next < 0) return;
  if (const auto* merge = model_.merges.find(symbol.id, symbols_[static_cast<std::size_t>(symbol.next)].id))
    candidates_.push({merge->rank, place, merge->merged});
}

/// n log n for a word of n bytes: every merge takes a symbol away and proposes two pairs at most.
void BytePairEncoder::put_together(std::string_view word, std::vector<std::int32_t>& ids) {
  constexpr auto longest = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  if (word.size() >= longest)
    throw InputFileError(fmt::format("{} leaves a word of {} bytes in one piece", model_.where, word.size()));
  begin_with_bytes(word);
  for (std::size_t place = 0; place < symbols_.size(); ++place) propose(static_cast<std::int32_t>(place));
  constexpr std::int32_t gone = -1;
  while (!candidates_.empty()) {
    const Candidate best = candidates_.top();
    candidates_.pop();
    Symbol& left = symbols_[static_cast<std::size_t>(best.place)];
    if (left.id == gone || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
    const auto* merge = model_.merges.find(left.id, right.id);
    if (merge == nullptr || merge->merged != best.merged) continue;  // One of the two was merged since.
    left.id = merge->merged;
    left.next = right.next;
    right.id = gone;
    if (left.next >= 0) symbols_[static_cast<std::size_t>(left.next)].previous = best.place;
    propose(left.previous);
    propose(best.place);
  }
  for (std::int32_t place = 0; place >= 0; place = symbols_[static_cast<std::size_t>(place)].next)
    ids.push_back(symbols_[static_cast<std::size_t>(place)].id);
}

}  // namespace encore::model
