// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <utility>

#include "byte_alphabet.hpp"
#include "text.hpp"
#include "tokenizer_content.hpp"
#include "utf8.hpp"

namespace encore::model {
namespace {

// The largest published vocabularies have some 262,000 tokens, the longest of 512 bytes.
constexpr std::int64_t most_tokens = std::int64_t{1} << 22;
constexpr std::size_t longest_token = 4096;

void require_model(const JsonFields& model) {
  model.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
               "byte_fallback", "ignore_merges", "vocab", "merges"});
  // Files of before 2020 name no type; the fields then tell.
  if (const std::string type = model.text_or("type", "BPE"); type != "BPE")
    model.unsupported("type", in_quotes(type));
  if (model.flag_or("byte_fallback", false)) model.unsupported("byte_fallback", "true");
  if (const auto* dropout = model.find("dropout"); dropout != nullptr && *dropout != 0)
    model.unsupported("dropout", "set");
  for (const char* const field : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const std::string affix = model.text_or(field, ""); !affix.empty())
      model.unsupported(field, in_quotes(affix));
}

void add_token(TokenTable& table, std::int64_t id, TokenTable::Token token, const std::string& spelling,
               const std::string& where) {
  const auto place = static_cast<std::size_t>(id);
  if (place >= table.tokens.size()) table.tokens.resize(place + 1);
  if (table.tokens[place].kind != TokenTable::Kind::none)
    throw InputFileError(fmt::format("{} has two tokens with the id {}", where, id));
  table.tokens[place] = std::move(token);
  table.ids.emplace(spelling, static_cast<std::int32_t>(id));
}

void read_tokens(const JsonFields& model, TokenTable& table) {
  const JsonFields vocabulary = model.object("vocab");
  table.ids.reserve(vocabulary.json().size());
  const std::string where = model.where("vocab");
  for (const auto& [spelling, unused] : vocabulary.json().items()) {
    if (spelling.size() > longest_token)
      model.malformed("vocab",
                      fmt::format("has a token of {} bytes: {}", spelling.size(), in_quotes(spelling)));
    const std::int64_t id = vocabulary.whole_number(spelling, 0, most_tokens - 1);
    // A spelling outside the alphabet of bytes stands for itself; only an added token can have it.
    add_token(table, id, {bytes_of_spelling(spelling).value_or(spelling), TokenTable::Kind::ordinary},
              spelling, where);
  }
}

struct Pair {
  std::string left, right;
};

Pair pair_in(const nlohmann::json& merge, const JsonFields& model, std::size_t place) {
  const auto malformed = [&] { model.malformed(fmt::format("merges[{}]", place), "is no pair of tokens"); };
  if (merge.is_array()) {
    if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) malformed();
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (!merge.is_string()) malformed();
  const auto& text = merge.get_ref<const std::string&>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) malformed();
  return {text.substr(0, space), text.substr(space + 1)};
}

MergeTable read_merges(const JsonFields& model, const TokenTable& table) {
  const nlohmann::json& list = model.required("merges");
  if (!list.is_array()) model.malformed("merges", "is no list");
  std::vector<PairMerge> merges;
  merges.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Pair pair = pair_in(list[i], model, i);
    const auto id_of = [&](const std::string& spelling) {
      const auto found = table.ids.find(spelling);
      if (found == table.ids.end())
        model.malformed(fmt::format("merges[{}]", i),
                        fmt::format("needs the token {}, which vocab does not have", in_quotes(spelling)));
      return found->second;
    };
    merges.push_back({id_of(pair.left), id_of(pair.right), id_of(pair.left + pair.right)});
  }
  return MergeTable(merges);
}

AddedToken added_token(const JsonFields& entry) {
  entry.allow({"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"});
  AddedToken token{.id = static_cast<std::int32_t>(entry.whole_number("id", 0, most_tokens - 1)),
                   .content = entry.text("content"),
                   .special = entry.flag_or("special", false),
                   .single_word = entry.flag_or("single_word", false),
                   .left_strip = entry.flag_or("lstrip", false),
                   .right_strip = entry.flag_or("rstrip", false),
                   .normalized = entry.flag_or("normalized", false)};
  if (token.content.empty()) entry.malformed("content", "is empty");
  if (token.content.size() > longest_token)
    entry.malformed("content", fmt::format("has {} bytes", token.content.size()));
  return token;
}

void read_added_tokens(const JsonFields& file, TokenTable& table) {
  if (file.find("added_tokens") == nullptr) return;
  std::size_t bytes = 0;
  std::unordered_set<std::string> contents;
  file.each_object("added_tokens", [&](const JsonFields& entry) {
    AddedToken token = added_token(entry);
    bytes += token.content.size();
    if (bytes > most_added_bytes) file.malformed("added_tokens", "holds too much text");
    const bool is_new = contents.insert(token.content).second;
    const auto kind = token.special ? TokenTable::Kind::special : TokenTable::Kind::ordinary;
    if (const auto known = table.ids.find(token.content); known == table.ids.end()) {
      add_token(table, token.id, {token.content, kind}, token.content, file.where("added_tokens"));
    } else if (known->second != token.id) {
      entry.malformed("id", fmt::format("is {}, but {} has the id {} already", token.id,
                                        in_quotes(token.content), known->second));
    } else if (!is_new) {
      entry.malformed("content",
                      fmt::format("is {}, as that of another added token", in_quotes(token.content)));
    } else {
      table.tokens[static_cast<std::size_t>(token.id)].kind = kind;
    }
    table.added.push_back(std::move(token));
  });
}

}  // namespace

void read_vocabulary(const JsonFields& file, TokenTable& table, BytePairModel& model) {
  const JsonFields fields = file.object("model");
  require_model(fields);
  read_tokens(fields, table);
  model.merges = read_merges(fields, table);
  model.where = file.file();
  model.fuses_unknown = fields.flag_or("fuse_unk", false);
  model.whole_words_first = fields.flag_or("ignore_merges", false);
  if (const std::string unknown = fields.text_or("unk_token", ""); !unknown.empty()) {
    const auto found = table.ids.find(unknown);
    if (found == table.ids.end())
      fields.malformed("unk_token", fmt::format("is {}, which vocab does not have", in_quotes(unknown)));
    model.unknown = found->second;
  }
  model.byte_ids.assign(256, -1);
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_utf8(letter, letter_of_byte(static_cast<unsigned char>(byte)));
    if (const auto found = table.ids.find(letter); found != table.ids.end())
      model.byte_ids[byte] = found->second;
  }
  if (model.whole_words_first)
    for (const auto& [spelling, id] : table.ids)
      if (auto bytes = bytes_of_spelling(spelling)) model.words.emplace(std::move(*bytes), id);
  read_added_tokens(file, table);
}

}  // namespace encore::model
