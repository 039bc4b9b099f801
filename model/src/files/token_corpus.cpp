// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/token_corpus.hpp>

#include <encore/backend/error.hpp>
#include <encore/model/files/atomic_file.hpp>
#include <encore/model/files/embedded_text.hpp>
#include <encore/model/files/mapped_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "text.hpp"

namespace encore::model {
namespace {

using Header = std::array<std::int32_t, 256>;

struct Format {
  TokenWidth width;
  std::int32_t magic;
  std::int32_t version;
  std::size_t token_bytes;
};
constexpr std::array<Format, 2> formats = {{{TokenWidth::uint16, 20240520, 1, sizeof(std::uint16_t)},
                                            {TokenWidth::uint32, 20240801, 7, sizeof(std::uint32_t)}}};

Format format_of(const Header& header, const std::string& name) {
  for (const Format& format : formats) {
    if (header[0] != format.magic) continue;
    if (header[1] != format.version)
      throw InputFileError(
          fmt::format("{} is a token file of version {}, but only version {} of its kind is known", name,
                      header[1], format.version));
    return format;
  }
  throw InputFileError(fmt::format(
      "{} is not a token file: it begins with {}, not with {} (16-bit tokens) or {} (32-bit tokens)", name,
      header[0], formats[0].magic, formats[1].magic));
}

/// The tokens behind the header, whose number the header and the length of the file must agree on.
template <class Token>
std::span<const Token> tokens_behind(const MappedFile& file, std::int32_t count, const std::string& name) {
  const auto bytes = file.bytes().subspan(sizeof(Header));
  if (count < 0 || static_cast<std::size_t>(count) * sizeof(Token) != bytes.size())
    throw InputFileError(fmt::format("{} announces {} tokens of {} bytes, but {} bytes follow its header",
                                     name, count, sizeof(Token), bytes.size()));
  // Mappings begin at a page, and the header's 1024 bytes keep every token aligned.
  return {reinterpret_cast<const Token*>(bytes.data()), static_cast<std::size_t>(count)};
}

[[noreturn]] void throw_token(const std::string& name, std::uint64_t token, std::int64_t position,
                              std::int64_t vocab) {
  throw InputFileError(
      fmt::format("{} holds the token {} at position {}, but model.vocab = {} allows at most {}", name, token,
                  position, vocab, vocab - 1));
}

}  // namespace

TokenCorpus::TokenCorpus(std::shared_ptr<const void> owner, Tokens tokens, std::string name)
    : owner_(std::move(owner)), tokens_(tokens), name_(std::move(name)) {}

TokenCorpus TokenCorpus::token_file(const std::filesystem::path& path) {
  auto file = std::make_shared<const MappedFile>(path);
  std::string name = path_in_quotes(path);
  Header header{};
  if (file->bytes().size() < sizeof(header))
    throw InputFileError(
        fmt::format("{} is not a token file: it holds {} bytes, but its header alone takes {}", name,
                    file->bytes().size(), sizeof(header)));
  std::memcpy(header.data(), file->bytes().data(), sizeof(header));
  if (format_of(header, name).width == TokenWidth::uint16)
    return {file, tokens_behind<std::uint16_t>(*file, header[2], name), name};
  return {file, tokens_behind<std::uint32_t>(*file, header[2], name), name};
}

TokenCorpus TokenCorpus::text_file(const std::filesystem::path& path) {
  auto file = std::make_shared<const MappedFile>(path);
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(file->bytes().data()), file->bytes().size());
  return {file, bytes, path_in_quotes(path)};
}

TokenCorpus TokenCorpus::text(std::string text, std::string name) {
  auto owned = std::make_shared<const std::string>(std::move(text));
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(owned->data()), owned->size());
  return {owned, bytes, std::move(name)};
}

TokenCorpus TokenCorpus::tokens(std::vector<std::int32_t> tokens, std::string name) {
  if (std::ranges::any_of(tokens, [](std::int32_t token) { return token < 0; }))
    throw InternalError(fmt::format("{} holds a negative token", name));
  auto owned = std::make_shared<const std::vector<std::int32_t>>(std::move(tokens));
  // A number that is not negative reads the same without a sign.
  const std::span numbers(reinterpret_cast<const std::uint32_t*>(owned->data()), owned->size());
  return {owned, numbers, std::move(name)};
}

TokenCorpus TokenCorpus::embedded() {
  const std::string_view text = embedded_text();
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  return {nullptr, bytes, "the shipped text"};
}

std::int64_t TokenCorpus::size() const noexcept {
  return std::visit([](const auto& tokens) { return static_cast<std::int64_t>(tokens.size()); }, tokens_);
}

void TokenCorpus::copy(std::int64_t begin, std::span<std::int32_t> tokens, std::int64_t vocab) const {
  if (begin < 0 || begin > size() || tokens.size() > static_cast<std::size_t>(size() - begin))
    throw InternalError(
        fmt::format("{} tokens from position {} on are more than {} holds", tokens.size(), begin, name_));
  const auto copy_from = [&](const auto& stored) {
    const auto source = stored.subspan(static_cast<std::size_t>(begin), tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (std::int64_t{source[i]} >= vocab)
        throw_token(name_, source[i], first_position_ + begin + static_cast<std::int64_t>(i), vocab);
      tokens[i] = static_cast<std::int32_t>(source[i]);
    }
  };
  std::visit(copy_from, tokens_);
}

void TokenCorpus::require_below(std::int64_t vocab) const {
  const auto check = [&](const auto& tokens) {
    const auto found = std::ranges::find_if(tokens, [vocab](std::int64_t token) { return token >= vocab; });
    if (found != tokens.end()) throw_token(name_, *found, first_position_ + (found - tokens.begin()), vocab);
  };
  std::visit(check, tokens_);
}

TokenCorpus TokenCorpus::slice(std::int64_t begin, std::int64_t end) const {
  if (begin < 0 || end < begin || end > size())
    throw InternalError(fmt::format("{} has no tokens [{}, {})", name_, begin, end));
  TokenCorpus part = *this;
  const auto shorten = [&](auto& tokens) {
    tokens = tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  std::visit(shorten, part.tokens_);
  part.first_position_ += begin;
  return part;
}

void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      TokenWidth width) {
  const Format& format = formats[static_cast<std::size_t>(width)];
  const std::int64_t limit = width == TokenWidth::uint16 ? std::numeric_limits<std::uint16_t>::max()
                                                         : std::numeric_limits<std::int32_t>::max();
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw OutputFileError(fmt::format("cannot write {}: its header has no room for {} tokens",
                                      path_in_quotes(path), tokens.size()));
  const auto misfit =
      std::ranges::find_if(tokens, [limit](std::int32_t token) { return token < 0 || token > limit; });
  if (misfit != tokens.end())
    throw OutputFileError(
        fmt::format("cannot write {}: the token {} at position {} does not fit into {} bytes",
                    path_in_quotes(path), *misfit, misfit - tokens.begin(), format.token_bytes));
  Header header{};
  header[0] = format.magic;
  header[1] = format.version;
  header[2] = static_cast<std::int32_t>(tokens.size());
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(header)));
  if (width == TokenWidth::uint16) {
    const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
    file.write_at(sizeof(header), std::as_bytes(std::span(narrow)));
  } else {
    file.write_at(sizeof(header), std::as_bytes(tokens));
  }
  file.commit();
}

}  // namespace encore::model
