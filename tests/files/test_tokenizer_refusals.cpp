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

#include "mutation.hpp"
#include "temporary_folder.hpp"

using namespace encore;
using namespace encore::model;

namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::string stored(const std::string& family) {
  return read_bytes(std::filesystem::path(ENCORE_TEST_DATA) / "tokenizers" / (family + ".json"));
}

/// The file of a family after the change.
template <class Change>
std::string changed(Change change, const std::string& family = "llama3") {
  Json document = Json::parse(stored(family));
  change(document);
  return document.dump();
}

template <class Exception, class Change>
void check_refused(Change change, const std::string& words, const std::string& family = "llama3") {
  CHECK_THROWS_WITH_AS(Tokenizer::parse(changed(change, family), "'t.json'"),
                       doctest::Contains(words.c_str()), Exception);
}

}  // namespace

TEST_CASE("what this version does not compute in a tokenizer.json is refused with the field's name") {
  const auto refused = [](const std::string& pointer, const Json& value, const std::string& words) {
    CAPTURE(pointer);
    check_refused<ConfigurationError>([&](Json& file) { file[Json::json_pointer(pointer)] = value; }, words);
  };
  refused("/model/type", "WordPiece", "model.type of 't.json' is 'WordPiece'");
  refused("/model/type", "Unigram", "model.type of 't.json' is 'Unigram'");
  refused("/model/byte_fallback", true, "model.byte_fallback of 't.json'");
  refused("/model/dropout", 0.1, "model.dropout of 't.json'");
  refused("/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix of 't.json'");
  refused("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix of 't.json'");
  refused("/model/novelty", 1, "model.novelty of 't.json'");
  refused("/normalizer", {{"type", "Lowercase"}}, "normalizer.type of 't.json' is 'Lowercase'");
  refused("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "x"}}}}},
          "normalizer.normalizers[0].type of 't.json' is 'Prepend'");
  refused("/pre_tokenizer", nullptr, "pre_tokenizer of 't.json'");
  refused("/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer.type of 't.json' is 'Metaspace'");
  refused("/pre_tokenizer/pretokenizers/0/behavior", "Sideways", "pre_tokenizer.pretokenizers[0].behavior");
  refused("/pre_tokenizer/pretokenizers/2", {{"type", "Digits"}}, "'Digits' after ByteLevel");
  refused("/decoder", {{"type", "Metaspace"}}, "decoder of 't.json'");
  refused("/decoder", nullptr, "decoder of 't.json'");
  refused("/truncation", {{"max_length", 5}}, "truncation of 't.json'");
  refused("/padding", {{"pad_id", 5}}, "padding of 't.json'");
  refused("/post_processor", {{"type", "Novel"}}, "post_processor.type of 't.json' is 'Novel'");
}

TEST_CASE("patterns that two engines understand differently are refused, others of all kinds are taken") {
  const auto with_pattern = [](const std::string& pattern) {
    return changed(
        [&](Json& file) { file["/pre_tokenizer/pretokenizers/0/pattern/Regex"_json_pointer] = pattern; });
  };
  for (const char* const pattern :
       {R"(a\b)",    R"((?m)a)",      R"((?i)a)",    R"(\h)",    R"(\1)",         R"([a[bc]])",
        R"([a&&b])", R"(a{2}+)",      R"(a{2,3}+)",  R"(a{2}?)", R"(\xe9)",       R"((?<name>a))",
        R"([\W])",   R"(\p{L)",       R"([])",       R"([a)",    R"(a\)",         R"(\p{Nonsense})",
        "(((",       "a**",           R"((?<=a*)b)", R"([z-a])", R"(\x{110000})", R"(\ud800)",
        R"((?#x))",  R"([[:alpha:]])"}) {
    CAPTURE(pattern);
    CHECK_THROWS_WITH_AS(Tokenizer::parse(with_pattern(pattern), "'t.json'"),
                         doctest::Contains("pre_tokenizer.pretokenizers[0].pattern.Regex of 't.json'"),
                         ConfigurationError);
  }
  CHECK_THROWS_AS(Tokenizer::parse(with_pattern(std::string(5000, 'a')), "'t.json'"), ConfigurationError);
  CHECK_THROWS_AS(Tokenizer::parse(with_pattern(std::string(1000, '(') + std::string(1000, ')')), "'t.json'"),
                  ConfigurationError);
  for (const char* const pattern :
       {R"(\s++a|b?+|c*?)", "(?>a|b)", "(?<=a)b(?!c)", "a{,3}|{x}", R"([\]\[\-a-z^-]+)", "日+"}) {
    CAPTURE(pattern);
    const Tokenizer tokenizer = Tokenizer::parse(with_pattern(pattern), "'t.json'");
    const std::string text = "ab  a-b{x} ] 日日 ccc";
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
}

TEST_CASE("a pattern that never comes to an end is given up with a sentence") {
  const std::string file = changed([](Json& json) {
    json["/pre_tokenizer/pretokenizers/0/pattern/Regex"_json_pointer] = "((a|a)+)+((a|a)+)+[bc]";
  });
  const Tokenizer tokenizer = Tokenizer::parse(file, "'t.json'");
  CHECK_THROWS_WITH_AS(tokenizer.encode(std::string(60, 'a')),
                       doctest::Contains("gives up on a text of 60 bytes"), InputFileError);
}

TEST_CASE("a tokenizer.json that contradicts itself is refused with the entry's name") {
  const auto refused = [](auto change, const std::string& words) {
    check_refused<InputFileError>(change, words);
  };
  refused([](Json& f) { f["model"]["vocab"]["Ġthe"] = f["model"]["vocab"]["a"]; }, "two tokens with the id");
  refused([](Json& f) { f["model"]["vocab"]["a"] = -1; }, "model.vocab.a of 't.json'");
  refused([](Json& f) { f["model"]["vocab"]["a"] = 1e3; }, "model.vocab.a of 't.json'");
  refused([](Json& f) { f["model"]["vocab"]["a"] = 1 << 30; }, "model.vocab.a of 't.json'");
  refused([](Json& f) { f["model"]["vocab"]["a"] = 18446744073709551615U; }, "model.vocab.a of 't.json'");
  refused([](Json& f) { f["model"]["vocab"][std::string(5000, 'a')] = 4000; }, "token of 5000 bytes");
  refused([](Json& f) { f["model"]["merges"][3] = "a b c"; }, "merges[3] of 't.json' is no pair");
  refused([](Json& f) { f["model"]["merges"][3] = {"a"}; }, "merges[3] of 't.json' is no pair");
  refused([](Json& f) { f["model"]["merges"][3] = {"qqq", "a"}; }, "needs the token 'qqq'");
  refused([](Json& f) { f["model"]["unk_token"] = "<unknown>"; }, "model.unk_token of 't.json'");
  refused([](Json& f) { f["model"].erase("merges"); }, "model.merges of 't.json' is missing");
  refused([](Json& f) { f.erase("model"); }, "model of 't.json' is missing");
  refused([](Json& f) { f["added_tokens"][0]["id"] = 3; }, "two tokens with the id 3");
  refused([](Json& f) { f["added_tokens"][0]["content"] = "a"; }, "added_tokens[0].id of 't.json'");
  refused([](Json& f) { f["added_tokens"][1]["content"] = f["added_tokens"][0]["content"]; },
          "added_tokens[1]");
  refused([](Json& f) { f["added_tokens"][0]["content"] = ""; }, "added_tokens[0].content of 't.json'");
  refused([](Json& f) { f["added_tokens"] = 3; }, "added_tokens of 't.json' is no list");
  refused(
      [](Json& f) {
        f["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {9999};
      },
      "adds an id that no token has");
  const Json piece = {{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}};
  const auto around = [](std::size_t ids, const Json& single) {
    return Json{{"type", "TemplateProcessing"},
                {"single", single},
                {"special_tokens", {{"x", {{"id", "x"}, {"ids", Json(ids, 0)}}}}}};
  };
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  for (const Json& single : {Json{text, piece, piece}, Json{piece, piece, text}}) {
    const Json most = around(512, single), more = around(513, single);
    CHECK_NOTHROW(Tokenizer::parse(changed([&](Json& f) { f["post_processor"] = most; }), "'t.json'"));
    refused([&](Json& f) { f["post_processor"] = more; }, "single of 't.json' adds too many tokens");
    refused(
        [&](Json& f) {
          f["post_processor"] = {{"type", "Sequence"}, {"processors", {most, most}}};
        },
        "processors[1].single of 't.json' adds too many tokens");
  }
  const Json pair = {{"type", "BertProcessing"}, {"cls", {"a", 0}}, {"sep", {"a", 0}}};
  refused(
      [&](Json& f) {
        f["post_processor"] = {{"type", "Sequence"}, {"processors", Json(1025, pair)}};
      },
      "processors[1024] of 't.json' adds too many tokens");
  check_refused<InputFileError>(
      [](Json& f) {
        std::string letters;
        for (int i = 0; i < 1360; ++i) letters += "\xef\xb7\xba";  // U+FDFA, 33 bytes after NFKC
        for (int id = 1000; id < 1100; ++id) {
          Json token = f["added_tokens"][4];
          token["id"] = id;
          token["content"] = letters + std::to_string(id);
          f["added_tokens"].push_back(token);
        }
      },
      "added_tokens of 't.json' holds too much text after", "prefixed");
  CHECK_THROWS_WITH_AS(Tokenizer::parse("[]", "'t.json'"), doctest::Contains("is not a JSON object"),
                       InputFileError);
  CHECK_THROWS_WITH_AS(Tokenizer::load("/nonexistent/tokenizer.json"),
                       doctest::Contains("/nonexistent/tokenizer.json"), InputFileError);
}

TEST_CASE(
    "any bytes are encoded and decoded again, those that are no UTF-8 apart from the text around them") {
  const Tokenizer tokenizer = Tokenizer::parse(stored("llama3"), "'t.json'");
  const auto encoded = [&](std::string_view text) { return tokenizer.encode(text); };
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  CHECK(tokenizer.decode(encoded(all)) == all);
  CHECK(encoded("").empty());
  // Too short, too long, a surrogate, above U+10FFFF, a lone continuation.
  for (const std::string_view invalid :
       {"\xe6\x88", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xff\xfe"}) {
    const std::string text = "the  end" + std::string(invalid) + " of it";
    CHECK(tokenizer.decode(encoded(text)) == text);
    Ids expected = encoded("the  end");
    for (const Ids& more : {encoded(invalid), encoded(" of it")})
      expected.insert(expected.end(), more.begin(), more.end());
    CHECK(encoded(text) == expected);
  }
  constexpr std::array<std::string_view, 3> words{"<|eot_id|>", "\xf0\x9f\x91\x8d", " "};
  Mutation mutation(17, words);
  for (int round = 0; round < 500; ++round) {
    const std::string text =
        mutation.of(mutation.of("The quick 日本語 café \n\n 12345 <|begin_of_text|> don't"));
    CHECK(tokenizer.decode(encoded(text)) == text);
  }
}

TEST_CASE("a byte without token is the unknown token, or refused where there is none") {
  const auto without_x = [](Json& file) {
    auto& model = file["model"];
    for (const char* const letter : {"x", "y"}) model["vocab"].erase(letter);
    model["merges"] = Json::array();
  };
  const Tokenizer none = Tokenizer::parse(changed(without_x), "'t.json'");
  CHECK_THROWS_WITH_AS(none.encode("ax"), doctest::Contains("no token for the byte 0x78"), InputFileError);
  const auto with_unknown = [&](bool fuses) {
    return Tokenizer::parse(changed([&](Json& file) {
                              without_x(file);
                              file["model"]["unk_token"] = "a";
                              file["model"]["fuse_unk"] = fuses;
                              file["model"]["ignore_merges"] = false;
                            }),
                            "'t.json'");
  };
  const std::int32_t a = *none.id_of("a"), b = *none.id_of("b");
  CHECK(with_unknown(false).encode("bxyb") == Ids{b, a, a, b});
  CHECK(with_unknown(true).encode("bxyb") == Ids{b, a, b});
}

TEST_CASE("merges in a file are pairs or strings with the same result") {
  const std::string pairs = stored("gpt2");
  const std::string strings = changed(
      [](Json& file) {
        for (Json& merge : file["model"]["merges"])
          if (merge.is_array()) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
      },
      "gpt2");
  CHECK(pairs != strings);
  const std::string text = "The quick brown fox doesn't jump; они говорят";
  CHECK(Tokenizer::parse(strings, "'s'").encode(text) == Tokenizer::parse(pairs, "'p'").encode(text));
}

TEST_CASE(
    "what begins and ends a text comes from the files beside a tokenizer.json, or from well-known names") {
  const Tokenizer alone = Tokenizer::parse(stored("llama3"), "'t.json'");
  const std::int32_t begin = *alone.id_of("<|begin_of_text|>"), end = *alone.id_of("<|end_of_text|>");
  const std::int32_t turn = *alone.id_of("<|eot_id|>");
  const auto ends = [](const Tokenizer& tokenizer) {
    return Ids(tokenizer.end_of_text().begin(), tokenizer.end_of_text().end());
  };
  CHECK(alone.begin_of_text() == begin);
  CHECK(ends(alone) == Ids{end, turn});
  CHECK(alone.is_special(begin));
  CHECK_FALSE(alone.is_special(0));
  CHECK_FALSE(alone.is_special(-1));
  CHECK(alone.vocabulary_size() == 503);
  CHECK(alone.contains(502));
  CHECK_FALSE(alone.contains(503));
  CHECK_THROWS_WITH_AS(alone.decode(Ids{503}), doctest::Contains("no token with the id 503"), InputFileError);
  CHECK(alone.decode(Ids{begin, *alone.id_of("a"), end}, {.skip_specials = true}) == "a");

  const TemporaryFolder folder;
  write_bytes(folder / "tokenizer.json", stored("llama3"));
  write_bytes(folder / "config.json", R"({"eos_token_id":5,"bos_token_id":6})");
  CHECK(ends(Tokenizer::load(folder.path())) == Ids{5});
  CHECK(Tokenizer::load(folder.path()).begin_of_text() == 6);
  write_bytes(folder / "tokenizer_config.json", R"({"eos_token":{"content":"<|eot_id|>"},"bos_token":"a"})");
  CHECK(ends(Tokenizer::load(folder.path())) == Ids{turn});
  CHECK(Tokenizer::load(folder / "tokenizer.json").begin_of_text() == alone.id_of("a"));
  write_bytes(folder / "generation_config.json", R"({"eos_token_id":[501,502]})");
  CHECK(ends(Tokenizer::load(folder.path())) == Ids{501, 502});
  write_bytes(folder / "generation_config.json", R"({"eos_token_id":[501,502)");
  CHECK_THROWS_WITH_AS(Tokenizer::load(folder.path()), doctest::Contains("generation_config.json"),
                       InputFileError);
}

TEST_CASE("text that may still grow is shown up to its last whole character") {
  CHECK(complete_utf8("") == 0);
  CHECK(complete_utf8("abc") == 3);
  CHECK(complete_utf8("a\xe6\x97\xa5") == 4);
  CHECK(complete_utf8("a\xe6\x97") == 1);
  CHECK(complete_utf8("a\xe6") == 1);
  CHECK(complete_utf8("a\xf0\x9f\x91") == 1);
  CHECK(complete_utf8("a\x97\x97\x97") == 4);
  CHECK(complete_utf8("a\xc0") == 2);
  CHECK(printable_utf8("a\xe6\x97z\xff\xff") == "a\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("a long word is encoded in the time that its length asks for") {
  const Tokenizer tokenizer = Tokenizer::parse(stored("gpt2"), "'t.json'");
  // A quadratic way would take minutes.
  std::string letters;
  for (int i = 0; i < 400000; ++i) letters += static_cast<char>('a' + (i % 23) * (i % 23) % 23);
  CHECK(tokenizer.decode(tokenizer.encode(letters)) == letters);
  const Tokenizer composing = Tokenizer::parse(stored("qwen3"), "'t.json'");
  std::string marks = "a";
  for (int i = 0; i < 100000; ++i)
    marks += i % 2 == 0 ? "\xcc\x81" : "\xcc\xa3";  // above, below: to be reordered
  CHECK(composing.encode(marks).size() > 1000);
}

TEST_CASE("damaged tokenizer.json files are refused or encode what they decode") {
  constexpr std::array<std::string_view, 24> words = {"{",
                                                      "}",
                                                      "[",
                                                      "]",
                                                      "\"",
                                                      ",",
                                                      "null",
                                                      "true",
                                                      "-1",
                                                      "4294967296",
                                                      "\"Regex\"",
                                                      "\"Split\"",
                                                      "\"ByteLevel\"",
                                                      "\"Sequence\"",
                                                      "\"NFC\"",
                                                      "(?:",
                                                      "\\\\s",
                                                      "\\\\p{L}",
                                                      "[^",
                                                      "*",
                                                      "{1,3}",
                                                      "\"Removed\"",
                                                      "\"id\"",
                                                      "\"merges\""};
  // Small ones, so that the damage meets more than the vocabulary.
  std::vector<std::string> files;
  for (const char* const family : {"llama3", "qwen3", "behaviours", "prefixed"})
    files.push_back(changed(
        [](Json& file) {
          auto& model = file["model"];
          for (auto it = model["vocab"].begin(); it != model["vocab"].end();)
            it = it.key().size() > 2 || it.value() > 200 ? model["vocab"].erase(it) : std::next(it);
          model["merges"] = Json::array();
        },
        family));
  Mutation mutation(18, words);
  int accepted = 0;
  const int rounds = fuzz_rounds() / 2;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    std::string file = files[mutation.below(files.size())];
    // Half of the damage goes where the steps are described.
    const std::size_t begin = file.find("\"normalizer\"");
    file =
        mutation.below(2) == 0 ? mutation.of(file) : file.substr(0, begin) + mutation.of(file.substr(begin));
    try {
      const Tokenizer tokenizer = Tokenizer::parse(file, "'f'");
      ++accepted;
      const Ids ids = tokenizer.encode("Don't  stop, café 123\n<|eot_id|>");
      CHECK(tokenizer.decode(ids).size() < 1000);
      for (const std::int32_t id : ids) CHECK(tokenizer.contains(id));
    } catch (const Error& error) {
      const std::string_view sentence = error.what();
      CHECK(sentence.find('\n') == std::string_view::npos);
      CHECK(error.code() != ErrorCode::internal);
    }
  }
  CHECK(accepted > rounds / 100);
  CHECK(accepted < rounds);
}
