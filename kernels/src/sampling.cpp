// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/sampling.hpp>

#include <encore/backend/philox.hpp>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

constexpr int threads = 512, threads_of_limit = 1024;
constexpr std::int64_t stretch = 2048;  ///< tokens that one team looks at for the best
constexpr std::int64_t most_stretches = 64;

std::int64_t stretches_of(std::int64_t vocabulary) {
  return std::min(impl::rounded_up_quotient(vocabulary, stretch), most_stretches);
}

/// Orders floats as integers: larger numbers have larger keys, NaN the largest.
KOKKOS_INLINE_FUNCTION std::uint32_t ordered(float value) {
  const auto bits = Kokkos::bit_cast<std::uint32_t>(value);
  if (value != value) return 0xffffffffU;
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
KOKKOS_INLINE_FUNCTION float unordered(std::uint32_t key) {
  return Kokkos::bit_cast<float>((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

/// A token's rank, of which no two are equal: the larger value, and of equal ones the lower token.
KOKKOS_INLINE_FUNCTION std::uint64_t rank_of(float value, std::int64_t token) {
  return (std::uint64_t(ordered(value)) << 32) | (0xffffffffU - static_cast<std::uint32_t>(token));
}
KOKKOS_INLINE_FUNCTION std::int32_t token_of(std::uint64_t rank) {
  return static_cast<std::int32_t>(0xffffffffU - static_cast<std::uint32_t>(rank));
}

/// Finds the rank from which on tokens are kept.
struct FindLimit {
  const float* logits;
  const SamplingSettings* settings;
  const std::int32_t* count;
  std::uint64_t* limits;
  std::int64_t vocabulary;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t sequence = team.league_rank();
    const SamplingSettings wanted = *settings;
    const bool cuts_count = wanted.top_k > 0 && wanted.top_k < vocabulary, cuts_sum = wanted.top_p < 1;
    std::uint64_t limit = 0;
    if (count[sequence] > 0 && wanted.temperature > 0 && (cuts_count || cuts_sum)) {
      const float* const row = logits + sequence * vocabulary;
      const auto last = team.max_over(vocabulary, std::uint64_t(0),
                                      [=](std::int64_t token) { return rank_of(row[token], token); });
      const Search<Team> search{team, row, vocabulary, last};
      if (cuts_count) limit = search.find(0, static_cast<float>(wanted.top_k), 0.0F);
      if (cuts_sum) {
        const auto inverse = static_cast<float>(1 / wanted.temperature);
        const float all = search.sum_from(limit, inverse);
        limit = search.find(limit, static_cast<float>(wanted.top_p) * all, inverse);
      }
    }
    if (team.rank() == 0) limits[sequence] = limit;
  }

  /// Of tokens with a weight: exp((logit - largest) * inverse), which is 1 for inverse 0.
  template <class Team>
  struct Search {
    static constexpr int steps = 7;  ///< ranks that a pass tries

    const Team& team;
    const float* row;
    std::int64_t vocabulary;
    std::uint64_t last;  ///< the largest rank

    KOKKOS_FUNCTION float sum_from(std::uint64_t limit, float inverse) const {
      const float largest = unordered(static_cast<std::uint32_t>(last >> 32));
      const float* const values = row;
      return team.template sum_over<float>(vocabulary, [=](std::int64_t token) {
        const float value = values[token];
        return rank_of(value, token) >= limit ? Kokkos::exp((value - largest) * inverse) : 0.0F;
      });
    }

    /// The largest rank x from `low` on such that tokens from x on have at least the weight `target` together; `low`
    /// if there is none. Every pass leaves an eighth of the ranks that it may be.
    KOKKOS_FUNCTION std::uint64_t find(std::uint64_t low, float target, float inverse) const {
      const float largest = unordered(static_cast<std::uint32_t>(last >> 32));
      std::uint64_t high = last + 1;
      std::int32_t tokens_from_low = static_cast<std::int32_t>(vocabulary), tokens_from_high = 0;
      while (high - low > 1 && tokens_from_low - tokens_from_high > 1) {
        const std::uint64_t step = (high - low) / (steps + 1) > 0 ? (high - low) / (steps + 1) : 1;
        float weight[steps] = {};
        std::int32_t tokens[steps] = {};
        for (std::int64_t token = team.rank(); token < vocabulary; token += Team::size()) {
          const std::uint64_t rank = rank_of(row[token], token);
          if (rank <= low) continue;
          const float own = inverse == 0 ? 1.0F : Kokkos::exp((row[token] - largest) * inverse);
          for (int i = 0; i < steps; ++i) {
            if (rank < low + step * static_cast<std::uint64_t>(i + 1)) break;
            weight[i] += own;
            ++tokens[i];
          }
        }
        const std::uint64_t before = low;
        for (int i = 0; i < steps; ++i) {
          const float all = team.sum(weight[i]);
          const std::int32_t all_tokens = team.sum(tokens[i]);
          const std::uint64_t tried = before + step * static_cast<std::uint64_t>(i + 1);
          if (tried >= high || tried < before) continue;
          if (all >= target) {
            low = tried;
            tokens_from_low = all_tokens;
          } else {
            high = tried;
            tokens_from_high = all_tokens;
          }
        }
      }
      return low;
    }
  };
};

/// -ln(-ln u) of a uniform u: the exponential number -ln u is formed from 1 - u, which is exact near 0, where the large
/// results come from.
KOKKOS_INLINE_FUNCTION float gumbel(std::uint32_t word) {
  const float complement = (static_cast<float>(word) + 0.5F) * (1.0F / 4294967296.0F);
  const float below_one = complement < 0.99999994F ? complement : 0.99999994F;
  return -Kokkos::log(-Kokkos::log1p(-below_one));
}

/// The best token of a stretch of the vocabulary, as a rank.
struct FindBest {
  const float* logits;
  const SamplingSettings* settings;
  const std::int32_t* first;
  const std::int32_t* count;
  const std::uint64_t* limits;
  std::uint64_t* best;
  std::int64_t vocabulary, stretches;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t sequence = impl::quotient(team.league_rank(), stretches);
    const std::int64_t index = team.league_rank() - sequence * stretches;
    // Whole quads of random words.
    const std::int64_t quads = impl::rounded_up_quotient(vocabulary, 4);
    const std::int64_t length = impl::rounded_up_quotient(quads, stretches), begin = index * length;
    const std::int64_t end = begin + length < quads ? begin + length : quads;
    const float* const row = logits + sequence * vocabulary;
    const SamplingSettings wanted = *settings;
    const bool draws = wanted.temperature > 0;
    const float inverse = draws ? static_cast<float>(1 / wanted.temperature) : 1.0F;
    const std::uint64_t limit = limits[sequence];
    const backend::RandomState random{wanted.seed, static_cast<std::uint64_t>(first[sequence]) +
                                                       static_cast<std::uint64_t>(count[sequence])};
    std::uint64_t largest = 0;
    for (std::int64_t quad = begin + team.rank(); quad < end; quad += Team::size()) {
      bool kept[4];
      bool any = false;
      for (int i = 0; i < 4; ++i) {
        const std::int64_t token = 4 * quad + i;
        kept[i] = token < vocabulary && rank_of(row[token], token) >= limit;
        any = any || kept[i];
      }
      if (!any) continue;
      backend::PhiloxCounter words{};
      if (draws)
        words = backend::random_words(random, static_cast<std::uint32_t>(sequence),
                                      static_cast<std::uint64_t>(quad));
      for (int i = 0; i < 4; ++i) {
        if (!kept[i]) continue;
        const std::int64_t token = 4 * quad + i;
        const float value = draws ? row[token] * inverse + gumbel(words.word[i]) : row[token];
        const std::uint64_t rank = rank_of(value, token);
        largest = rank > largest ? rank : largest;
      }
    }
    largest = team.max(largest);
    if (team.rank() == 0) best[team.league_rank()] = largest;
  }
};

struct StoreToken {
  const std::int32_t* first;
  const std::int32_t* count;
  const std::uint64_t* best;
  std::int32_t* tokens;
  std::int64_t stretches, capacity;

  KOKKOS_FUNCTION void operator()(std::int64_t sequence) const {
    const std::int64_t place = std::int64_t(first[sequence]) + count[sequence];
    if (count[sequence] == 0 || place >= capacity) return;
    std::uint64_t largest = 0;
    for (std::int64_t i = 0; i < stretches; ++i) {
      const std::uint64_t other = best[sequence * stretches + i];
      largest = other > largest ? other : largest;
    }
    tokens[sequence * capacity + place] = token_of(largest);
  }
};

}  // namespace

std::int64_t sampling_workspace(std::int64_t sequences, std::int64_t vocabulary) {
  return sequences * (1 + stretches_of(vocabulary));
}

template <class Space>
void sample_tokens(Stream<Space>& stream, const DecodeRows<Space>& rows, Matrix<const float, Space> logits,
                   const SamplingSettings* settings, Matrix<std::int32_t, Space> tokens,
                   Vector<std::uint64_t, Space> workspace) {
  const std::int64_t sequences = rows.sequences(), vocabulary = impl::columns_of(logits);
  const std::int64_t capacity = impl::columns_of(tokens), stretches = stretches_of(vocabulary);
  impl::require_shape(
      impl::is_vector(rows.count, sequences) && vocabulary > 0 &&
          impl::is_matrix(logits, sequences, vocabulary) && impl::is_matrix(tokens, sequences, capacity) &&
          impl::is_vector(workspace, sampling_workspace(sequences, vocabulary)),
      "sample_tokens: logits must be [sequences, vocabulary], tokens [sequences, capacity] and the "
      "workspace as long as told");
  std::uint64_t* const limits = workspace.data();
  std::uint64_t* const best = limits + sequences;
  const auto best_elements = static_cast<std::size_t>(sequences * stretches);
  const auto limit_elements = static_cast<std::size_t>(sequences);
  launch(stream, "decode/sampling_limits",
         {backend::read(logits), backend::read(settings, 1), backend::read(rows.count),
          backend::write(limits, limit_elements)},
         backend::Teams<threads_of_limit>{sequences},
         FindLimit{logits.data(), settings, rows.count.data(), limits, vocabulary});
  launch(
      stream, "decode/sampling_best",
      {backend::read(logits), backend::read(settings, 1), backend::read(rows.first),
       backend::read(rows.count), backend::read(limits, limit_elements), backend::write(best, best_elements)},
      backend::Teams<threads>{sequences * stretches},
      FindBest{logits.data(), settings, rows.first.data(), rows.count.data(), limits, best, vocabulary,
               stretches});
  launch(stream, "decode/sampling_store",
         {backend::read(rows.first), backend::read(rows.count), backend::read(best, best_elements),
          backend::write(tokens)},
         backend::Range{sequences},
         StoreToken{rows.first.data(), rows.count.data(), best, tokens.data(), stretches, capacity});
}

#define ENCORE_INSTANTIATE(SPACE)                                                                          \
  template void sample_tokens<SPACE>(Stream<SPACE>&, const DecodeRows<SPACE>&, Matrix<const float, SPACE>, \
                                     const SamplingSettings*, Matrix<std::int32_t, SPACE>,                 \
                                     Vector<std::uint64_t, SPACE>);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
