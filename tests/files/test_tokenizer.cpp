// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/tokenizer.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "python_judge.hpp"
#include "temporary_folder.hpp"

using namespace encore::model;

namespace {

using Ids = std::vector<std::int32_t>;

std::filesystem::path data_folder() { return std::filesystem::path(ENCORE_TEST_DATA) / "tokenizers"; }

constexpr std::array families{"gpt2",     "llama3",    "qwen3",    "gpt-oss",
                              "deepseek", "starcoder", "prefixed", "behaviours"};

/// Compares with every expectation that make.py wrote into the folder; returns how many there were.
int check_expectations(const std::filesystem::path& folder) {
  int count = 0;
  for (const char* const family : families) {
    const std::string name = family;
    CAPTURE(name);
    const Tokenizer tokenizer = Tokenizer::load(folder / (std::string(family) + ".json"));
    const auto expectations =
        nlohmann::json::parse(read_bytes(folder / (std::string(family) + ".expected.json")));
    for (const nlohmann::json& expected : expectations) {
      const auto text = expected.at("text").get<std::string>();
      CAPTURE(text);
      const auto ids = expected.at("ids").get<Ids>();
      CHECK(tokenizer.encode(text) == ids);
      CHECK(tokenizer.encode(text, {.recognize_specials = false}) == expected.value("plain", ids));
      CHECK(tokenizer.encode(text, {.add_prefix = true, .add_suffix = true}) == expected.value("added", ids));
      CHECK(printable_utf8(tokenizer.decode(ids)) == expected.value("decoded", text));
      ++count;
    }
  }
  return count;
}

}  // namespace

TEST_CASE("a tokenizer gives the ids that the package tokenizers gave for the stored texts") {
  CHECK(check_expectations(data_folder()) >= 8 * 24);
}

TEST_CASE("what a file adds around a text is added before it, behind it, or both") {
  const Tokenizer tokenizer = Tokenizer::load(data_folder() / "prefixed.json");
  const std::int32_t begin = *tokenizer.id_of("<s>"), end = *tokenizer.id_of("</s>");
  const std::int32_t word = tokenizer.encode("a").at(0);
  CHECK(tokenizer.encode("a") == Ids{word});
  CHECK(tokenizer.encode("a", {.add_prefix = true}) == Ids{begin, word});
  CHECK(tokenizer.encode("a", {.add_suffix = true}) == Ids{word, end});
  CHECK(tokenizer.encode("a", {.add_prefix = true, .add_suffix = true}) == Ids{begin, word, end});
}

TEST_CASE("a tokenizer gives the ids that the installed package tokenizers gives for texts of all scripts") {
  const PythonJudge python;
  if (!python.has("tokenizers")) {
    MESSAGE("tokenizers is not installed: not judged");
    return;
  }
  const TemporaryFolder folder;
  const auto answer =
      python.run(read_bytes(data_folder() / "make.py"), folder.path().string() + " --cases 150 --classes");
  REQUIRE_MESSAGE(answer.status == 0, answer.output);
  CHECK(check_expectations(folder.path()) == 8 * 150);
  const auto expected = nlohmann::json::parse(read_bytes(folder / "classes.expected"));
  const auto text = expected.at("text").get<std::string>();
  for (const nlohmann::json& entry : expected.at("classes")) {
    const auto pattern = entry.at("pattern").get<std::string>();
    CAPTURE(pattern);
    const Tokenizer tokenizer = Tokenizer::parse(entry.at("tokenizer").get<std::string>(), "'test'");
    const std::string rest = tokenizer.decode(tokenizer.encode(text)),
                      wanted = entry.at("rest").get<std::string>();
    const auto [at, other] = std::mismatch(rest.begin(), rest.end(), wanted.begin(), wanted.end());
    const std::string difference(at, std::min(at + 4, rest.end())),
        instead(other, std::min(other + 4, wanted.end()));
    CAPTURE(rest.size());
    CAPTURE(wanted.size());
    CHECK(difference == instead);
  }
}
