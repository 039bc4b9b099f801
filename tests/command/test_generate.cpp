// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

using Json = nlohmann::json;

/// A trained tiny model of bytes.
class TrainedModel : public TinyModel {
 public:
  TrainedModel() {
    REQUIRE(encore(train({"--save", path("run.safetensors"), "--no-verdict", "--quiet"})).code == 0);
  }
  Outcome generate(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"generate", "--load", path("run.safetensors"), "--backend", "serial"};
    all.insert(all.end(), more.begin(), more.end());
    return encore(all);
  }
};

TEST_CASE("generate prints the prompt and what follows, and one line on standard error") {
  const TrainedModel model;
  const Outcome greedy = model.generate({"--prompt", "Anne", "--tokens", "20", "--temperature", "0"});
  CHECK(greedy.code == 0);
  CHECK(greedy.output.starts_with("Anne"));
  CHECK(greedy.output.size() == 4 + 20 + 1);
  CHECK(lines_of(greedy.error).size() == 1);
  CHECK(greedy.error.find("tokens/s by replay of") != std::string::npos);
  CHECK(greedy.output == model.generate({"--prompt", "Anne", "--tokens", "20", "--top-k", "1"}).output);
  CHECK(greedy.output ==
        model.generate({"--prompt", "Anne", "--tokens", "20", "--temperature", "0", "--eager"}).output);
}

TEST_CASE("what generate draws depends on the seed; replay and eager steps draw the same") {
  const TrainedModel model;
  const auto texts = [&](const std::string& seed) {
    const Outcome outcome = model.generate(
        {"--tokens", "30", "--sequences", "3", "--seed", seed, "--json", "--compare", "--top-p", "0.9"});
    CHECK(outcome.code == 0);
    const Json json = Json::parse(outcome.output);
    CHECK(json.at("equal") == true);
    CHECK(json.at("graph_nodes") > 10);
    CHECK(json.at("prompt") == "\n");
    CHECK(json.at("replay").at("steps") == 30);
    CHECK(json.at("memory").at("total_bytes") > json.at("memory").at("weights"));
    CHECK(json.at("texts").size() == 3);
    for (const Json& text : json.at("texts")) CHECK(text.at("tokens").size() == 30);
    return json.at("texts");
  };
  const Json one = texts("1");
  CHECK(one == texts("1"));
  CHECK(one != texts("2"));
  CHECK(one[0] != one[1]);
}

TEST_CASE("several texts follow one another, and an end token ends one") {
  const TrainedModel model;
  const Outcome two = model.generate({"--prompt", "a", "--tokens", "5", "--sequences", "2"});
  CHECK(two.code == 0);
  CHECK(two.output.find("\n---\na") != std::string::npos);
  std::vector<std::string> ends{"--tokens", "40", "--json"};
  for (int token = 0; token < 128; ++token) {
    ends.push_back("--end-token");
    ends.push_back(std::to_string(token));
  }
  const Json json = Json::parse(model.generate(ends).output);
  const auto tokens = json.at("texts").at(0).at("tokens").get<std::vector<int>>();
  REQUIRE(!tokens.empty());
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) CHECK(tokens[i] >= 128);
}

TEST_CASE("a prompt is read from a file, byte for byte") {
  const TrainedModel model;
  write_bytes(model.folder / "prompt", std::string("\xff\0z", 3));
  const Outcome outcome = model.generate({"--prompt-file", model.path("prompt"), "--tokens", "2"});
  CHECK(outcome.code == 0);
  CHECK(outcome.output.substr(0, 3) == std::string("\xff\0z", 3));
  CHECK(outcome.output.size() == 6);
}

TEST_CASE("a model of another vocabulary reads and writes token ids, or bytes if told so") {
  const std::vector<std::string> gpt2{"generate",
                                      "--preset",
                                      "gpt2",
                                      "--backend",
                                      "serial",
                                      "--set",
                                      "model.layers=1",
                                      "--set",
                                      "model.hidden=64",
                                      "--set",
                                      "model.heads=2",
                                      "--set",
                                      "model.ffn=64",
                                      "--set",
                                      "model.vocab=300",
                                      "--set",
                                      "train.precision=fp32",
                                      "--tokens",
                                      "3"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = gpt2;
    all.insert(all.end(), more.begin(), more.end());
    return encore(all);
  };
  const Outcome ids = with({"--prompt", "299, 7 0"});
  CAPTURE(ids.error);
  CHECK(ids.code == 0);
  CHECK(ids.output.starts_with("299 7 0 "));
  CHECK(with({"--prompt", "ab", "--bytes"}).output.starts_with("ab"));
  check_refused(with({"--prompt", "ab"}), 3, {"--prompt", "'ab'", "300"});
  check_refused(with({"--prompt", "1 300"}), 3, {"'300'"});
  check_refused(with({"--prompt", " "}), 3, {"--prompt is empty"});
  check_refused(with({"--tokenizer", "no-such-file.json"}), 3, {"no-such-file.json"});
}

TEST_CASE("a tokenizer stands between the prompt and the tokens, and its end of text ends one") {
  const std::string tokenizer = ENCORE_TEST_DATA "/tokenizers/gpt2.json";
  const auto with = [](const std::string& tokenizer_file, const std::string& prompt) {
    return encore({"generate",
                   "--preset",
                   "gpt2",
                   "--backend",
                   "serial",
                   "--set",
                   "model.layers=1",
                   "--set",
                   "model.hidden=32",
                   "--set",
                   "model.heads=2",
                   "--set",
                   "model.ffn=32",
                   "--set",
                   "train.precision=fp32",
                   "--tokens",
                   "3",
                   "--tokenizer",
                   tokenizer_file,
                   "--prompt",
                   prompt,
                   "--json"});
  };
  const Outcome outcome = with(tokenizer, "Hello there");
  CAPTURE(outcome.error);
  REQUIRE(outcome.code == 0);
  const Json json = Json::parse(outcome.output);
  CHECK(json.at("prompt") == "Hello there");
  CHECK(json.at("prompt_tokens") < 11);
  // The file's <s> stands before the prompt; its </s> would end the text before it goes on.
  const Outcome prefixed = with(ENCORE_TEST_DATA "/tokenizers/prefixed.json", "a");
  REQUIRE_MESSAGE(prefixed.code == 0, prefixed.error);
  CHECK(Json::parse(prefixed.output).at("prompt_tokens") == 2);
  check_refused(encore({"generate", "--preset", "gpt2", "--tokenizer", tokenizer, "--bytes"}), 2,
                {"--bytes"});
}

TEST_CASE("generate refuses what it cannot do with one sentence") {
  const TrainedModel model;
  check_refused(model.generate({"--temperature", "nan"}), 2, {"--temperature"});
  check_refused(model.generate({"--temperature", "0.001"}), 2, {"temperature is 0.001"});
  check_refused(model.generate({"--top-p", "0"}), 2, {"top-p is 0"});
  check_refused(model.generate({"--top-k", "-1"}), 2, {"--top-k"});
  check_refused(model.generate({"--tokens", "0"}), 2, {"--tokens"});
  check_refused(model.generate({"--prompt", "a", "--prompt-file", "b"}), 2, {"--prompt"});
  check_refused(model.generate({"--prompt-file", "no-such-file"}), 3, {"no-such-file"});
  check_refused(model.generate({"--prompt", ""}), 3, {"--prompt is empty"});
  check_refused(model.generate({"--sequences", "0"}), 2, {"--sequences"});
  check_refused(encore({"generate", "--load", model.path("tiny.json"), "--backend", "serial"}), 3,
                {"tiny.json"});
}

}  // namespace
