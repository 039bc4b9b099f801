// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace encore::model {

/// A sequence of tokens that stays where it is (in a mapped file or in memory). Copies share it.
class TokenCorpus {
 public:
  /// A token file as llm.c writes it: 256 little-endian int32, of which the first three are the magic number,
  /// the version and the number of tokens, then the tokens: uint16 (20240520, 1) or uint32 (20240801, 7).
  /// Mapped, not read. Throws InputFileError if the header or the length of the file is anything else.
  /// Format: https://github.com/karpathy/llm.c, dev/data/data_common.py
  static TokenCorpus token_file(const std::filesystem::path& path);

  /// A file of any kind, one token a byte. Throws InputFileError if it cannot be read.
  static TokenCorpus text_file(const std::filesystem::path& path);

  /// A text in memory, one token a byte; `name` stands for it in errors.
  static TokenCorpus text(std::string text, std::string name);

  /// Tokens in memory; `name` stands for them in errors. Throws InternalError for a negative one.
  static TokenCorpus tokens(std::vector<std::int32_t> tokens, std::string name);

  /// The text that ships with the library, one token a byte.
  static TokenCorpus embedded();

  std::int64_t size() const noexcept;

  /// What stands for it in errors: the quoted path of a file.
  const std::string& name() const noexcept { return name_; }

  /// Copies the tokens from `begin` on into `tokens`. Throws InputFileError, with position, token and limit,
  /// if one of them is not below `vocab`; InternalError if the corpus ends before.
  void copy(std::int64_t begin, std::span<std::int32_t> tokens, std::int64_t vocab) const;

  /// Throws as `copy` does if any token is not below `vocab`.
  void require_below(std::int64_t vocab) const;

  /// The tokens [begin, end) as a corpus of the same name. Throws InternalError if there are not so many.
  TokenCorpus slice(std::int64_t begin, std::int64_t end) const;

 private:
  using Tokens = std::variant<std::span<const std::uint8_t>, std::span<const std::uint16_t>,
                              std::span<const std::uint32_t>>;

  TokenCorpus(std::shared_ptr<const void> owner, Tokens tokens, std::string name);

  std::shared_ptr<const void> owner_;  ///< of the memory that `tokens_` shows; null for static memory
  Tokens tokens_;
  std::string name_;
  std::int64_t first_position_ = 0;  ///< of `tokens_` in the file, for errors
};

enum class TokenWidth { uint16, uint32 };

/// Writes a token file that `TokenCorpus::token_file` reads, atomically. Throws OutputFileError if it cannot
/// be written, or if a token is negative or too large for the width, or there are 2^31 tokens or more.
void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      TokenWidth width);

}  // namespace encore::model
