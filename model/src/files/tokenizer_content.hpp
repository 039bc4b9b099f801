// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/tokenizer.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "added_token_search.hpp"
#include "byte_pairs.hpp"
#include "json_fields.hpp"
#include "pre_tokenizer.hpp"
#include "text_normalization.hpp"

namespace encore::model {

/// Of all added tokens together, before normalization and after it.
constexpr std::size_t most_added_bytes = std::size_t{1} << 22;

/// The tokens by id and by name.
struct TokenTable {
  enum class Kind : std::uint8_t { none, ordinary, special };
  struct Token {
    std::string bytes;
    Kind kind = Kind::none;
  };
  std::vector<Token> tokens;  ///< by id
  IdsByText ids;              ///< by the spelling in the file
  std::vector<AddedToken> added;
};

/// What the file says about the ids around a text.
struct TextEnds {
  std::vector<std::int32_t> prefix, suffix;  ///< what post_processor adds
  std::optional<std::int32_t> begin;
  std::vector<std::int32_t> end;
};

struct Tokenizer::Content {
  std::string name;
  TokenTable table;
  BytePairModel model;
  std::vector<NormalizationForm> normalizations;
  std::vector<SplitStep> steps;
  std::vector<AddedTokenSearch> searches;  ///< before normalization, and after it
  TextEnds ends;
};

/// model and added_tokens of the file.
void read_vocabulary(const JsonFields& file, TokenTable& table, BytePairModel& model);
std::vector<NormalizationForm> read_normalizer(const JsonFields& file);
std::vector<SplitStep> read_pre_tokenizer(const JsonFields& file);
void require_byte_level_decoder(const JsonFields& file);
/// The ids that post_processor puts around a text.
TextEnds read_post_processor(const JsonFields& file, const TokenTable& table);
/// Fills begin and end, from the files beside, post_processor and well-known names. An empty folder: no files.
void find_text_ends(const std::filesystem::path& folder, const TokenTable& table, TextEnds& ends);

}  // namespace encore::model
