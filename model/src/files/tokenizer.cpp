// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/tokenizer.hpp>

#include <encore/backend/error.hpp>
#include <encore/model/files/mapped_file.hpp>

#include <fmt/format.h>

#include <utility>

#include "strict_json.hpp"
#include "text.hpp"
#include "tokenizer_content.hpp"
#include "utf8.hpp"

namespace encore::model {
namespace {

using Content = Tokenizer::Content;

constexpr std::size_t most_bytes = std::size_t{1} << 28;  // the largest published ones have some 35 MB

std::string normalized(std::string_view text, const Content& content) {
  std::string result(text);
  for (const NormalizationForm form : content.normalizations) result = normalized_text(result, form);
  return result;
}

std::shared_ptr<Content> content_of(std::string_view json, std::string source) {
  auto content = std::make_shared<Content>();
  content->name = std::move(source);
  nlohmann::json document;
  try {
    document = parse_json_object(json);
  } catch (const JsonProblem& problem) {
    throw InputFileError(fmt::format("{} {}", content->name, problem.what()));
  }
  const JsonFields file(document, "", content->name);
  file.allow(
      {"version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"});
  read_vocabulary(file, content->table, content->model);
  content->normalizations = read_normalizer(file);
  content->steps = read_pre_tokenizer(file);
  require_byte_level_decoder(file);
  content->ends = read_post_processor(file, content->table);
  std::vector<AddedToken> raw, later;
  std::size_t bytes = 0;
  for (const AddedToken& token : content->table.added) {
    (token.normalized ? later : raw).push_back(token);
    if (!token.normalized) continue;
    later.back().content = normalized(token.content, *content);
    bytes += later.back().content.size();  // up to eleven times as much as before
    if (bytes > most_added_bytes)
      file.malformed("added_tokens", "holds too much text after the normalizer's changes");
    content->table.tokens[static_cast<std::size_t>(token.id)].bytes = later.back().content;
  }
  content->searches.emplace_back(std::move(raw), content->name);
  content->searches.emplace_back(std::move(later), content->name);
  return content;
}

/// Encodes one text; holds the working memory.
class Encoding {
 public:
  Encoding(const Content& content, bool recognize_specials)
      : content_(content),
        recognize_specials_(recognize_specials),
        splitter_(content.steps),
        encoder_(content.model),
        word_([this](std::string_view word) { encoder_.encode(word, ids_); }) {}

  std::vector<std::int32_t> run(std::string_view text) {
    while (!text.empty()) {
      const std::size_t valid = valid_utf8_prefix(text);
      add_text(text.substr(0, valid));
      text.remove_prefix(valid);
      std::size_t invalid = 0;
      while (invalid < text.size() && utf8_character(text.substr(invalid)).length == 0) ++invalid;
      if (invalid > 0) encoder_.encode(text.substr(0, invalid), ids_);
      text.remove_prefix(invalid);
    }
    return std::move(ids_);
  }

 private:
  void add_text(std::string_view text) {
    content_.searches[0].split(text, recognize_specials_,
                               [this](std::optional<std::int32_t> id, std::string_view piece) {
                                 if (id) return ids_.push_back(*id);
                                 if (content_.normalizations.empty()) return add_normalized(piece);
                                 add_normalized(normalized(piece, content_));
                               });
  }

  void add_normalized(std::string_view text) {
    content_.searches[1].split(text, recognize_specials_,
                               [this](std::optional<std::int32_t> id, std::string_view piece) {
                                 if (id) return ids_.push_back(*id);
                                 splitter_.split(piece, word_);
                               });
  }

  const Content& content_;
  bool recognize_specials_;
  WordSplitter splitter_;
  BytePairEncoder encoder_;
  WordSplitter::WordFunction word_;
  std::vector<std::int32_t> ids_;
};

const TokenTable::Token* token_of(const Content& content, std::int64_t id) {
  const auto& tokens = content.table.tokens;
  if (id < 0 || id >= std::ssize(tokens)) return nullptr;
  const TokenTable::Token& token = tokens[static_cast<std::size_t>(id)];
  return token.kind == TokenTable::Kind::none ? nullptr : &token;
}

const TokenTable::Token& required_token(const Content& content, std::int64_t id) {
  if (const TokenTable::Token* const token = token_of(content, id)) return *token;
  throw InputFileError(fmt::format("{} has no token with the id {}: its ids are below {}", content.name, id,
                                   content.table.tokens.size()));
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  auto content = content_of(read_text_file(file, most_bytes), path_in_quotes(file));
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  find_text_ends(folder, content->table, content->ends);
  return Tokenizer(std::move(content));
}

Tokenizer Tokenizer::parse(std::string_view json, std::string source) {
  auto content = content_of(json, std::move(source));
  find_text_ends({}, content->table, content->ends);
  return Tokenizer(std::move(content));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<std::int32_t> ids = Encoding(*content_, options.recognize_specials).run(text);
  const TextEnds& ends = content_->ends;
  if (options.add_prefix) ids.insert(ids.begin(), ends.prefix.begin(), ends.prefix.end());
  if (options.add_suffix) ids.insert(ids.end(), ends.suffix.begin(), ends.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, const DecodeOptions& options) const {
  std::string text;
  for (const std::int32_t id : ids) {
    const TokenTable::Token& token = required_token(*content_, id);
    if (!options.skip_specials || token.kind != TokenTable::Kind::special) text += token.bytes;
  }
  return text;
}

std::int64_t Tokenizer::vocabulary_size() const noexcept { return std::ssize(content_->table.tokens); }
bool Tokenizer::contains(std::int64_t id) const noexcept { return token_of(*content_, id) != nullptr; }
std::string_view Tokenizer::token(std::int64_t id) const { return required_token(*content_, id).bytes; }

std::optional<std::int32_t> Tokenizer::id_of(std::string_view content) const {
  const auto found = content_->table.ids.find(content);
  return found == content_->table.ids.end() ? std::nullopt : std::optional(found->second);
}

bool Tokenizer::is_special(std::int64_t id) const noexcept {
  const TokenTable::Token* const token = token_of(*content_, id);
  return token != nullptr && token->kind == TokenTable::Kind::special;
}

std::span<const AddedToken> Tokenizer::added_tokens() const noexcept { return content_->table.added; }
std::optional<std::int32_t> Tokenizer::begin_of_text() const noexcept { return content_->ends.begin; }
std::span<const std::int32_t> Tokenizer::end_of_text() const noexcept { return content_->ends.end; }
const std::string& Tokenizer::name() const noexcept { return content_->name; }

}  // namespace encore::model
