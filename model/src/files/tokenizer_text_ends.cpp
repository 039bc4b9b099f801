// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/mapped_file.hpp>

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "strict_json.hpp"
#include "text.hpp"
#include "tokenizer_content.hpp"

namespace encore::model {
namespace {

constexpr std::array<std::string_view, 6> names_of_begin = {
    "<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|endoftext|>", "[BOS]"};
constexpr std::array<std::string_view, 9> names_of_end = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>",
                                                          "<|im_end|>",    "<|return|>",      "</s>",
                                                          "<eos>",         "<end_of_turn>",   "[EOS]"};

std::optional<std::int32_t> special_id(const TokenTable& table, std::string_view name) {
  const auto found = table.ids.find(name);
  if (found == table.ids.end()) return {};
  const bool is_special =
      table.tokens[static_cast<std::size_t>(found->second)].kind == TokenTable::Kind::special;
  return is_special ? std::optional(found->second) : std::nullopt;
}

std::optional<nlohmann::json> object_beside(const std::filesystem::path& file) {
  constexpr std::size_t most_bytes = std::size_t{1} << 26;  // some hold all their added tokens again
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  try {
    return parse_json_object(read_text_file(file, most_bytes));
  } catch (const JsonProblem& problem) {
    throw InputFileError(fmt::format("{} {}", path_in_quotes(file), problem.what()));
  }
}

/// One id, or a list of them. Ids that no token has are those of another vocabulary: the field then says nothing.
std::vector<std::int32_t> ids_in(const nlohmann::json& object, const char* field, const TokenTable& table) {
  std::vector<std::int32_t> ids;
  const auto found = object.find(field);
  if (found == object.end()) return ids;
  const auto add = [&](const nlohmann::json& id) {
    if (id.is_number_unsigned() && id.get<std::uint64_t>() < table.tokens.size())
      ids.push_back(id.get<std::int32_t>());
  };
  if (found->is_array()) {
    for (const nlohmann::json& id : *found) add(id);
  } else {
    add(*found);
  }
  return ids;
}

/// A token's content, as a string or as an object with the field content.
std::vector<std::int32_t> named_in(const nlohmann::json& object, const char* field, const TokenTable& table) {
  auto found = object.find(field);
  if (found == object.end()) return {};
  const nlohmann::json* token = &*found;
  if (token->is_object() && token->contains("content")) token = &(*token)["content"];
  if (!token->is_string()) return {};
  const auto id = table.ids.find(token->get_ref<const std::string&>());
  if (id == table.ids.end()) return {};
  return {id->second};
}

void take(const std::vector<std::int32_t>& begin, std::vector<std::int32_t> end, TextEnds& ends) {
  if (!ends.begin && !begin.empty()) ends.begin = begin.front();
  if (ends.end.empty()) ends.end = std::move(end);
}

}  // namespace

void find_text_ends(const std::filesystem::path& folder, const TokenTable& table, TextEnds& ends) {
  if (!folder.empty()) {
    if (const auto object = object_beside(folder / "generation_config.json"))
      take(ids_in(*object, "bos_token_id", table), ids_in(*object, "eos_token_id", table), ends);
    if (const auto object = object_beside(folder / "tokenizer_config.json"))
      take(named_in(*object, "bos_token", table), named_in(*object, "eos_token", table), ends);
    if (const auto object = object_beside(folder / "config.json"))
      take(ids_in(*object, "bos_token_id", table), ids_in(*object, "eos_token_id", table), ends);
  }
  if (!ends.prefix.empty() || !ends.suffix.empty()) {
    take(ends.prefix, ends.suffix, ends);
  }
  for (const std::string_view name : names_of_begin)
    if (const auto id = special_id(table, name); id && !ends.begin) ends.begin = *id;
  if (ends.end.empty())
    for (const std::string_view name : names_of_end)
      if (const auto id = special_id(table, name)) ends.end.push_back(*id);
}

}  // namespace encore::model
