// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "text.hpp"
#include "tokenizer_content.hpp"

namespace encore::model {
namespace {

// https://github.com/openai/gpt-2, src/encoder.py
constexpr std::string_view gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::size_t most_steps = 16;
constexpr std::size_t most_ids_around = 1024;  // before a text, and behind it
constexpr const char* too_many_ids = "adds too many tokens";

void add_normalizer(const JsonFields& step, std::vector<NormalizationForm>& forms) {
  const std::map<std::string, NormalizationForm, std::less<>> known = {{"NFC", NormalizationForm::nfc},
                                                                       {"NFD", NormalizationForm::nfd},
                                                                       {"NFKC", NormalizationForm::nfkc},
                                                                       {"NFKD", NormalizationForm::nfkd}};
  const std::string type = step.text("type");
  if (type == "Sequence") {
    step.allow({"type", "normalizers"});
    return step.each_object("normalizers", [&](const JsonFields& inner) { add_normalizer(inner, forms); });
  }
  const auto found = known.find(type);
  if (found == known.end()) step.unsupported("type", in_quotes(type));
  step.allow({"type"});
  require_normalization(step.where(""));
  if (forms.size() == most_steps) step.malformed("", "is one step too many");
  forms.push_back(found->second);
}

SplitBehavior behavior_of(const JsonFields& step) {
  const std::map<std::string, SplitBehavior, std::less<>> known = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const std::string name = step.text("behavior");
  const auto found = known.find(name);
  if (found == known.end()) step.unsupported("behavior", in_quotes(name));
  return found->second;
}

std::string escaped(std::string_view literal) {
  std::string result;
  for (const char character : literal) {
    if (std::string_view(R"(\^$.|?*+()[]{}-)").find(character) != std::string_view::npos) result += '\\';
    result += character;
  }
  return result;
}

TextPattern split_pattern(const JsonFields& step) {
  const JsonFields pattern = step.object("pattern");
  pattern.allow({"Regex", "String"});
  if (pattern.find("Regex") != nullptr) return {pattern.text("Regex"), pattern.where("Regex")};
  const std::string literal = pattern.text("String");
  if (literal.empty()) pattern.malformed("String", "is empty");
  return {escaped(literal), pattern.where("String")};
}

void add_pre_tokenizer(const JsonFields& step, std::vector<SplitStep>& steps, bool& has_byte_level) {
  const std::string type = step.text("type");
  if (type == "Sequence") {
    step.allow({"type", "pretokenizers"});
    return step.each_object(
        "pretokenizers", [&](const JsonFields& inner) { add_pre_tokenizer(inner, steps, has_byte_level); });
  }
  if (has_byte_level) step.unsupported("type", fmt::format("{} after ByteLevel", in_quotes(type)));
  if (steps.size() == most_steps) step.malformed("", "is one step too many");
  SplitStep made;
  if (type == "ByteLevel") {
    step.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    has_byte_level = true;
    made.prefix_space = step.flag_or("add_prefix_space", true);
    if (step.flag_or("use_regex", true)) made.pattern.emplace(gpt2_words, step.where("use_regex"));
  } else if (type == "Split") {
    step.allow({"type", "pattern", "behavior", "invert"});
    made.pattern = split_pattern(step);
    made.behavior = behavior_of(step);
    made.inverted = step.flag_or("invert", false);
  } else if (type == "Digits") {
    step.allow({"type", "individual_digits"});
    made.pattern.emplace(R"(\p{N})", step.where("type"));
    made.behavior =
        step.flag_or("individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous;
  } else if (type == "Punctuation") {
    step.allow({"type", "behavior"});
    // All of ASCII that is neither letter, digit, space nor control character, and Unicode's punctuation.
    made.pattern.emplace(R"([!-/:-@\[-`{-~\p{P}])", step.where("type"));
    if (step.find("behavior") != nullptr) made.behavior = behavior_of(step);
  } else {
    step.unsupported("type", in_quotes(type));
  }
  steps.push_back(std::move(made));
}

bool is_byte_level(const JsonFields& decoder) {
  const std::string type = decoder.text("type");
  if (type != "Sequence") return type == "ByteLevel";
  std::size_t count = 0;
  bool all = true;
  decoder.each_object("decoders", [&](const JsonFields& inner) {
    ++count;
    all = all && inner.text("type") == "ByteLevel";
  });
  return all && count == 1;
}

std::int32_t known_id(const nlohmann::json& id, const JsonFields& step, const TokenTable& table) {
  const bool is_known = id.is_number_unsigned() && id.get<std::uint64_t>() < table.tokens.size() &&
                        table.tokens[id.get<std::size_t>()].kind != TokenTable::Kind::none;
  if (!is_known) step.malformed("", "adds an id that no token has");
  return id.get<std::int32_t>();
}

/// Puts the ids of a step around those of the steps before.
void add_around(std::span<const std::int32_t> before, std::span<const std::int32_t> after,
                const JsonFields& step, const std::string& field, TextEnds& ends) {
  ends.prefix.insert(ends.prefix.begin(), before.begin(), before.end());
  ends.suffix.insert(ends.suffix.end(), after.begin(), after.end());
  if (std::max(ends.prefix.size(), ends.suffix.size()) > most_ids_around) step.malformed(field, too_many_ids);
}

/// The ids of a piece of a template, and whether it is the text instead.
bool is_text(const JsonFields& piece, const JsonFields& step, const TokenTable& table,
             std::vector<std::int32_t>& ids) {
  piece.allow({"Sequence", "SpecialToken"});
  if (piece.find("Sequence") != nullptr) return true;
  const std::string name = piece.object("SpecialToken").text("id");
  const nlohmann::json& list = step.object("special_tokens").object(name).required("ids");
  if (!list.is_array()) step.malformed("special_tokens", "has no list of ids");
  // A template may name a long list any number of times.
  if (list.size() > most_ids_around - ids.size()) step.malformed("single", too_many_ids);
  for (const nlohmann::json& id : list) ids.push_back(known_id(id, step, table));
  return false;
}

void add_template(const JsonFields& step, const TokenTable& table, TextEnds& ends) {
  step.allow({"type", "single", "pair", "special_tokens"});
  std::vector<std::int32_t> before, after;
  int texts = 0;
  step.each_object("single", [&](const JsonFields& piece) {
    texts += is_text(piece, step, table, texts == 0 ? before : after);
  });
  if (texts != 1) step.malformed("single", "does not hold the text once");
  add_around(before, after, step, "single", ends);
}

void add_post_processor(const JsonFields& step, const TokenTable& table, TextEnds& ends) {
  const std::string type = step.text("type");
  if (type == "ByteLevel") return;  // It changes offsets alone.
  if (type == "Sequence")
    return step.each_object("processors",
                            [&](const JsonFields& inner) { add_post_processor(inner, table, ends); });
  if (type == "TemplateProcessing") return add_template(step, table, ends);
  if (type != "RobertaProcessing" && type != "BertProcessing") step.unsupported("type", in_quotes(type));
  step.allow({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  const auto id_in = [&](const std::string& field) {
    const nlohmann::json& pair = step.required(field);
    if (!pair.is_array() || pair.size() != 2) step.malformed(field, "is no pair of token and id");
    return known_id(pair[1], step, table);
  };
  add_around(std::array{id_in("cls")}, std::array{id_in("sep")}, step, "", ends);
}

}  // namespace

std::vector<NormalizationForm> read_normalizer(const JsonFields& file) {
  std::vector<NormalizationForm> forms;
  if (file.find("normalizer") != nullptr) add_normalizer(file.object("normalizer"), forms);
  return forms;
}

std::vector<SplitStep> read_pre_tokenizer(const JsonFields& file) {
  std::vector<SplitStep> steps;
  bool has_byte_level = false;
  if (file.find("pre_tokenizer") != nullptr)
    add_pre_tokenizer(file.object("pre_tokenizer"), steps, has_byte_level);
  if (!has_byte_level) file.unsupported("pre_tokenizer", "without a step of type ByteLevel");
  return steps;
}

void require_byte_level_decoder(const JsonFields& file) {
  if (file.find("decoder") == nullptr || !is_byte_level(file.object("decoder")))
    file.unsupported("decoder", "of another type than ByteLevel");
}

TextEnds read_post_processor(const JsonFields& file, const TokenTable& table) {
  TextEnds ends;
  if (file.find("post_processor") != nullptr) add_post_processor(file.object("post_processor"), table, ends);
  return ends;
}

}  // namespace encore::model
