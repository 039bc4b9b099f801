// SPDX-License-Identifier: Apache-2.0
#include "strict_json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "text.hpp"

namespace encore::model {
namespace {

constexpr int most_nested = 32;

/// `text` with the bare words NaN, Infinity and -Infinity put between quotes.
std::string with_python_numbers_quoted(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    if (in_string) {
      const std::size_t length = text[i] == '\\' ? 2 : 1;
      in_string = text[i] != '"';
      result.append(text.substr(i, length));
      i += length;
      continue;
    }
    std::string_view word;
    for (const std::string_view candidate : {"NaN", "Infinity", "-Infinity"})
      if (text.substr(i, candidate.size()) == candidate) word = candidate;
    if (!word.empty()) {
      result += fmt::format("\"{}\"", word);
      i += word.size();
      continue;
    }
    in_string = text[i] == '"';
    result += text[i++];
  }
  return result;
}

/// Watches a parse: counts nesting and remembers the keys of every open object.
class ParseWatch {
 public:
  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > most_nested) throw JsonProblem(fmt::format("is nested more than {} deep", most_nested));
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second)
        throw JsonProblem(fmt::format("has the key {} twice", in_quotes(key)));
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

std::string json_error_text(const nlohmann::json::exception& error) {
  std::string_view text = error.what();
  // "[json.exception.parse_error.101] parse error at ...: syntax error while parsing value - ..."
  if (const std::size_t end = text.find("] "); text.starts_with('[') && end != std::string_view::npos)
    text.remove_prefix(end + 2);
  return printable(text);
}

nlohmann::json parse_json_object(std::string_view text) {
  try {
    ParseWatch watch;
    const auto callback = [&watch](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      return watch(depth, event, value);
    };
    nlohmann::json document = nlohmann::json::parse(with_python_numbers_quoted(text), callback);
    if (!document.is_object()) throw JsonProblem("is not a JSON object");
    return document;
  } catch (const nlohmann::json::exception& error) {
    throw JsonProblem(fmt::format("is not valid JSON: {}", json_error_text(error)));
  }
}

}  // namespace encore::model
