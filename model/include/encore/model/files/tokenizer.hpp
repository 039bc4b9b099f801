// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace encore::model {

/// An entry of `added_tokens`: a text that becomes one token wherever it stands.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;      ///< it controls the model (`<|endoftext|>`) and is no text of a person
  bool single_word = false;  ///< only where no letter or digit touches it
  bool left_strip = false;   ///< takes the white space before it along
  bool right_strip = false;  ///< and the white space behind it
  bool normalized = false;   ///< looked for after normalization, not before
};

struct EncodeOptions {
  bool recognize_specials = true;  ///< false: a special token's name in the text is text like any other
  bool add_prefix = false;         ///< add what the file's post_processor adds before a text: its beginning
  bool add_suffix = false;  ///< and what it adds behind: its end, which a text that goes on does not have
};

struct DecodeOptions {
  bool skip_specials = false;  ///< leave special tokens out
};

/// A byte-level BPE tokenizer from a Hugging Face `tokenizer.json`: the families of GPT-2, Llama 3, Qwen2/Qwen3 and
/// GPT-OSS. Gives the ids that the package `tokenizers` gives for the same file.
///
///   const Tokenizer tokenizer = Tokenizer::load("model/tokenizer.json");   // or its folder
///   const std::vector<std::int32_t> ids = tokenizer.encode("Hello there");
///   const std::string text = tokenizer.decode(ids);
///
/// Immutable; copies share it, and any number of threads may use one at the same time.
class Tokenizer {
 public:
  /// Reads `tokenizer.json`, which `path` names or holds; and, for the ids that begin and end a text, whichever of
  /// generation_config.json, tokenizer_config.json and config.json stand beside it.
  /// Throws InputFileError for a file that is malformed or contradicts itself, ConfigurationError for what this
  /// version or this build does not compute (a model other than byte-level BPE, an unknown normalizer, no PCRE2),
  /// each naming the field.
  static Tokenizer load(const std::filesystem::path& path);

  /// The same from the text of a tokenizer.json alone; `source` stands for it in errors.
  static Tokenizer parse(std::string_view json, std::string source);

  /// The token ids of a text. Bytes that are not valid UTF-8 become the tokens of those bytes. Throws InputFileError
  /// for a byte that has no token (a file whose vocabulary lacks it and names no unk_token), and for a text on which
  /// the file's pattern exceeds the limits of the regular expression engine.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The bytes of the tokens, one after another, so that `decode(a) + decode(b)` is `decode(a and b)`. A prefix of a
  /// text, or ids that no text gives, may end within a character: see `complete_utf8` and `printable_utf8`.
  /// Throws InputFileError for an id that no token has.
  std::string decode(std::span<const std::int32_t> ids, const DecodeOptions& options = {}) const;

  /// One more than the largest id. There may be fewer tokens: `contains` tells. A model's vocab may be larger
  /// (padding), but not smaller.
  std::int64_t vocabulary_size() const noexcept;
  bool contains(std::int64_t id) const noexcept;

  /// The bytes of one token. Throws InputFileError for an id that no token has.
  std::string_view token(std::int64_t id) const;
  /// The id of an added token by its content, or of a token of the vocabulary by its spelling in the file.
  std::optional<std::int32_t> id_of(std::string_view content) const;
  bool is_special(std::int64_t id) const noexcept;
  std::span<const AddedToken> added_tokens() const noexcept;

  /// What begins a text, and what may end one (Llama 3 has several). From, in this order, generation_config.json,
  /// tokenizer_config.json and config.json beside the file; without them, what post_processor adds, and the special
  /// tokens with well-known names. Empty where none of them says so.
  std::optional<std::int32_t> begin_of_text() const noexcept;
  std::span<const std::int32_t> end_of_text() const noexcept;

  /// What stands for it in errors: the quoted path.
  const std::string& name() const noexcept;

  struct Content;

 private:
  explicit Tokenizer(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<const Content> content_;
};

/// How many bytes at the beginning of `bytes` do not end within a character: what may be shown while more may come.
std::size_t complete_utf8(std::string_view bytes) noexcept;

/// `bytes` with U+FFFD for each stretch that is no valid UTF-8.
std::string printable_utf8(std::string_view bytes);

}  // namespace encore::model
