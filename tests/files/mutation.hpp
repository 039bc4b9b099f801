// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <string_view>

/// How many inputs a fuzz test tries: ENCORE_FUZZ_ROUNDS, or a number that keeps the whole suite quick.
inline int fuzz_rounds() {
  const char* const rounds = std::getenv("ENCORE_FUZZ_ROUNDS");
  return rounds != nullptr ? std::max(1, std::atoi(rounds)) : 4000;
}

/// Damages inputs, always in the same way for the same seed.
class Mutation {
 public:
  /// `words` are pieces that mean something to the parser under test.
  Mutation(std::uint64_t seed, std::span<const std::string_view> words) : random_(seed), words_(words) {}

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  /// The input with one to four damages.
  std::string of(std::string input) {
    for (std::size_t damages = 1 + below(4); damages > 0; --damages) damage(input);
    return input;
  }

 private:
  void damage(std::string& input) {
    const std::size_t place = below(input.size() + 1);
    const std::size_t length = std::min(below(8) + 1, input.size() - place);
    switch (below(7)) {
      case 0:
        if (place < input.size()) input[place] = static_cast<char>(input[place] ^ (1 << below(8)));
        break;
      case 1:
        if (place < input.size()) input[place] = static_cast<char>(below(256));
        break;
      case 2: input.insert(place, 1, static_cast<char>(below(256))); break;
      case 3: input.erase(place, length); break;
      case 4: input.insert(place, input.substr(below(input.size()), below(40))); break;
      case 5: input.replace(place, below(2) * length, words_[below(words_.size())]); break;
      default:
        // Cutting loses most of the input, so it is done rarely.
        if (below(8) == 0) input.resize(place);
    }
  }

  std::mt19937_64 random_;
  std::span<const std::string_view> words_;
};
