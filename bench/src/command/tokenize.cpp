// SPDX-License-Identifier: Apache-2.0
#include "tokenize.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/atomic_file.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <encore/model/files/token_corpus.hpp>
#include <encore/model/files/tokenizer.hpp>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "json_output.hpp"

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;

/// On one line, between quotes.
std::string quoted(std::string_view bytes) { return Json(model::printable_utf8(bytes)).dump(); }

/// The first tokens, a line each, for a person to see what the file makes of a text.
void print_first(const std::vector<std::int32_t>& ids, std::int64_t count, const model::Tokenizer& tokenizer,
                 Console& console) {
  const auto shown = std::min<std::int64_t>(count, std::ssize(ids));
  for (std::int64_t i = 0; i < shown; ++i) {
    const std::int32_t id = ids[static_cast<std::size_t>(i)];
    console.print(fmt::format("{:>8}  {}\n", id, quoted(tokenizer.token(id))));
  }
}

int encode(const TokenizeOptions& options, Console& console) {
  const model::Tokenizer tokenizer = model::Tokenizer::load(options.tokenizer);
  const model::MappedFile file(options.file);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::int32_t> ids = tokenizer.encode(text, {.recognize_specials = !options.plain,
                                                                .add_prefix = options.add_specials,
                                                                .add_suffix = options.add_specials});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  constexpr std::int64_t narrow = std::int64_t{std::numeric_limits<std::uint16_t>::max()} + 1;
  const bool fits = tokenizer.vocabulary_size() <= narrow;
  if (options.output)
    model::write_token_file(*options.output, ids,
                            fits ? model::TokenWidth::uint16 : model::TokenWidth::uint32);
  if (options.json) {
    print_json({{"file", options.file.string()},
                {"tokenizer", options.tokenizer.string()},
                {"bytes", text.size()},
                {"tokens", ids.size()},
                {"vocabulary", tokenizer.vocabulary_size()},
                {"seconds", seconds},
                {"output", options.output ? Json(options.output->string()) : Json()}},
               console);
    return 0;
  }
  if (!options.output) print_first(ids, options.count > 0 ? options.count : 20, tokenizer, console);
  const double per_token =
      ids.empty() ? 0 : static_cast<double>(text.size()) / static_cast<double>(ids.size());
  console.line(fmt::format("{} bytes, {} tokens, {:.2f} bytes a token; {:.1f} MB/s", text.size(), ids.size(),
                           per_token, static_cast<double>(text.size()) / 1e6 / std::max(seconds, 1e-9)));
  if (options.output) console.line(fmt::format("saved: {}", options.output->string()));
  return 0;
}

int decode(const TokenizeOptions& options, Console& console) {
  const model::Tokenizer tokenizer = model::Tokenizer::load(options.tokenizer);
  const auto corpus = model::TokenCorpus::token_file(options.file);
  const std::int64_t begin = std::min(options.skip, corpus.size());
  const std::int64_t rest = corpus.size() - begin;
  const std::int64_t count = options.count > 0 ? std::min(options.count, rest) : rest;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  corpus.copy(begin, ids, std::numeric_limits<std::int32_t>::max());
  const std::string text = tokenizer.decode(ids);
  if (options.output) {
    model::write_file_atomically(*options.output, text);
    if (!options.json) console.line(fmt::format("saved: {}", options.output->string()));
  }
  if (options.json) {
    print_json({{"file", options.file.string()}, {"tokens", count}, {"bytes", text.size()}, {"text", text}},
               console);
  } else if (!options.output) {
    const std::string printable = model::printable_utf8(text);
    console.print(text.ends_with('\n') ? printable : printable + "\n");
  }
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, TokenizeOptions& options) {
  app.add_option("FILE", options.file, "the text; with --decode the token file")->required();
  app.add_option("--tokenizer", options.tokenizer, "tokenizer.json, or the folder that holds it")
      ->type_name("FILE")
      ->required();
  app.add_option(
         "-o,--output", options.output,
         "token file to write, in llm.c's format (16-bit tokens up to a vocabulary of 65536); with --decode "
         "the text; without it, tokens or text are printed")
      ->type_name("FILE");
  auto* decodes = app.add_flag("--decode", options.decode, "from tokens to text");
  app.add_flag("--plain", options.plain, "take the names of special tokens for text like any other")
      ->excludes(decodes);
  app.add_flag("--add-specials", options.add_specials,
               "add what the tokenizer's post_processor adds to a text")
      ->excludes(decodes);
  app.add_option("--skip", options.skip, "tokens to pass over first")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->needs(decodes);
  app.add_option("--count", options.count, "most tokens to print")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  app.add_flag("--json", options.json, "print one JSON object and nothing else");
}

int tokenize(const TokenizeOptions& options, Console& console) {
  return options.decode ? decode(options, console) : encode(options, console);
}

}  // namespace encore::command
