// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "run_command.hpp"
#include "tiny_model.hpp"

using nlohmann::json;

namespace {

std::string tokenizer(const std::string& family) {
  return ENCORE_TEST_DATA "/tokenizers/" + family + ".json";
}

const std::string some_text = [] {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "The quick brown fox doesn't jump " + std::to_string(i) + " times. Съешь же!\n";
  return text + "\xff<|endoftext|>";
}();

}  // namespace

TEST_CASE("tokenize writes a token file that gives the text back, and train reads") {
  const TinyModel tiny;
  write_bytes(tiny.path("text"), some_text);
  const Outcome made = encore({"tokenize", tiny.path("text"), "--tokenizer", tokenizer("gpt2"), "-o",
                               tiny.path("tokens.bin"), "--json"});
  REQUIRE_MESSAGE(made.code == 0, made.error);
  const json report = json::parse(made.output);
  CHECK(report["bytes"] == some_text.size());
  CHECK(report["tokens"] < some_text.size());
  CHECK(std::filesystem::file_size(tiny.path("tokens.bin")) ==
        1024 + 2 * report["tokens"].get<std::size_t>());
  const Outcome back = encore({"tokenize", tiny.path("tokens.bin"), "--decode", "--tokenizer",
                               tokenizer("gpt2"), "-o", tiny.path("again")});
  CHECK_MESSAGE(back.code == 0, back.error);
  CHECK(read_bytes(tiny.path("again")) == some_text);
  const Outcome part = encore({"tokenize", tiny.path("tokens.bin"), "--decode", "--tokenizer",
                               tokenizer("gpt2"), "--skip", "1", "--count", "3"});
  CHECK(part.output.size() < 40);
  const Outcome looked =
      encore({"tokenize", tiny.path("text"), "--tokenizer", tokenizer("gpt2"), "--count", "2"});
  CHECK(lines_of(looked.output).size() == 3);
  const std::vector<std::string> vocab{"--set", "model.vocab=501", "--steps", "2", "--no-verdict"};
  for (const auto& data :
       {std::vector<std::string>{"--data", tiny.path("tokens.bin")},
        std::vector<std::string>{"--text", tiny.path("text"), "--tokenizer", tokenizer("gpt2")},
        std::vector<std::string>{"--tokenizer", tokenizer("gpt2")}}) {
    std::vector<std::string> arguments = vocab;
    arguments.insert(arguments.end(), data.begin(), data.end());
    const Outcome outcome = encore(tiny.train(arguments));
    CHECK_MESSAGE(outcome.code == 0, outcome.error);
  }
}

TEST_CASE("special tokens in a text are taken for text with --plain") {
  const TinyModel tiny;
  write_bytes(tiny.path("text"), "a<|endoftext|>");
  const auto tokens = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"tokenize", tiny.path("text"), "--tokenizer", tokenizer("gpt2"), "--json"});
    return json::parse(encore(more).output)["tokens"].get<int>();
  };
  CHECK(tokens({}) == 2);
  CHECK(tokens({"--plain"}) > 4);
}

TEST_CASE("a tokenizer that is malformed, missing or larger than the vocabulary is refused with its name") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--tokenizer", tokenizer("gpt2")})), 2,
                {"gpt2.json", "500", "model.vocab", "501"});
  check_refused(encore(tiny.train({"--tokenizer", tiny.path("none.json")})), 3,
                {"none.json", "No such file"});
  write_bytes(tiny.path("bad.json"), R"({"model":{"type":"Unigram"}})");
  check_refused(encore(tiny.train({"--tokenizer", tiny.path("bad.json")})), 2,
                {"bad.json", "model.type", "Unigram"});
  check_refused(encore({"tokenize", tiny.path("none"), "--tokenizer", tokenizer("gpt2")}), 3, {"none"});
  check_refused(encore({"tokenize", tokenizer("gpt2"), "--decode", "--tokenizer", tokenizer("gpt2")}), 3,
                {"is not a token file"});
  check_refused(encore({"tokenize", tiny.path("x")}), 2, {"--tokenizer"});
}

TEST_CASE(
    "half a training saved as shards and loaded, and the other half, give the bits of the whole training") {
  const TinyModel tiny;
  const std::string folder = tiny.path("shards");
  const auto train = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--no-verdict", "--set", "model.vocab=501", "--tokenizer", tokenizer("gpt2")});
    const Outcome outcome = encore(tiny.train(more));
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  };
  train({"--save", tiny.path("whole.safetensors")});
  train({"--steps", "4", "--save", folder, "--shard-size", "20KB", "--set", "train.checkpoint_interval=1"});
  const json index = json::parse(read_bytes(folder + "/model.safetensors.index.json"));
  std::set<std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) files.insert(file);
  CHECK(files.size() > 3);
  // The shards, their index, the model and the tokenizer, and nothing of the steps before.
  CHECK(static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {})) ==
        files.size() + 3);
  const Outcome alone = encore({"eval", "--load", folder, "--sequences", "8", "--json"});
  REQUIRE_MESSAGE(alone.code == 0, alone.error);
  train({"--load", folder, "--save", tiny.path("resumed.safetensors")});
  CHECK(read_bytes(tiny.path("whole.safetensors")) == read_bytes(tiny.path("resumed.safetensors")));
  train({"--steps", "4", "--save", tiny.path("one.safetensors")});

  const Outcome of_one = encore({"eval", "--load", tiny.path("one.safetensors"), "--sequences", "8", "--json",
                                 "--tokenizer", tokenizer("gpt2")});
  REQUIRE_MESSAGE(of_one.code == 0, of_one.error);
  CHECK(json::parse(of_one.output)["loss"] == json::parse(alone.output)["loss"]);
}

TEST_CASE("a folder with another tokenizer is not saved into, one with the same is") {
  const TinyModel tiny;
  const std::string folder = tiny.path("saved");
  std::filesystem::create_directory(folder);
  const auto save = [&] {
    return encore(tiny.train({"--steps", "1", "--no-verdict", "--set", "model.vocab=501", "--tokenizer",
                              tokenizer("gpt2"), "--save", folder}));
  };
  write_bytes(folder + "/tokenizer.json", read_bytes(tokenizer("qwen3")));
  check_refused(save(), 3, {folder, "another tokenizer.json", "gpt2.json"});
  CHECK(read_bytes(folder + "/tokenizer.json") == read_bytes(tokenizer("qwen3")));
  CHECK_FALSE(std::filesystem::exists(folder + "/model.safetensors"));
  write_bytes(folder + "/tokenizer.json", read_bytes(tokenizer("gpt2")));
  const Outcome same = save();
  CHECK_MESSAGE(same.code == 0, same.error);
  CHECK(std::filesystem::exists(folder + "/model.safetensors"));
}

TEST_CASE("a folder with Hugging Face's names, in shards, is evaluated as the one file is") {
  const TinyModel tiny;
  const std::string golden = read_bytes(ENCORE_TEST_DATA "/goldens/llama.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, golden.data(), sizeof length);
  const json header = json::parse(golden.substr(8, length));
  const std::string prefix = "w.";
  const auto file_of = [&](int shard, int shards) {
    json described;
    std::string data;
    int place = 0;
    for (const auto& [name, tensor] : header.items()) {
      if (!name.starts_with(prefix) || (shards > 1 && place++ % shards != shard)) continue;
      const std::size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      described[name.substr(prefix.size())] = {{"dtype", tensor["dtype"]},
                                               {"shape", tensor["shape"]},
                                               {"data_offsets", {data.size(), data.size() + end - begin}}};
      data += golden.substr(8 + length + begin, end - begin);
    }
    const std::string text = described.dump();
    std::string bytes(8, '\0');
    const std::uint64_t size = text.size();
    std::memcpy(bytes.data(), &size, sizeof size);
    return std::pair(bytes + text + data, described);
  };
  json map;
  for (const char* const folder : {"one", "three"}) std::filesystem::create_directory(tiny.path(folder));
  for (int shard = 0; shard < 3; ++shard) {
    const std::string name = "model-0000" + std::to_string(shard + 1) + "-of-00003.safetensors";
    const auto [bytes, described] = file_of(shard, 3);
    write_bytes(tiny.path("three/" + name), bytes);
    for (const auto& [tensor, unused] : described.items()) map[tensor] = name;
  }
  write_bytes(tiny.path("three/model.safetensors.index.json"),
              json{{"metadata", json::object()}, {"weight_map", map}}.dump());
  write_bytes(tiny.path("one/model.safetensors"), file_of(0, 1).first);
  std::vector<double> losses;
  std::string small(2000, '\0');
  for (std::size_t i = 0; i < small.size(); ++i) small[i] = static_cast<char>(i * i % 90);
  write_bytes(tiny.path("text"), small);
  for (const char* const folder : {"one", "three"}) {
    write_bytes(tiny.path(std::string(folder) + "/config.json"),
                header["__metadata__"]["config"].get<std::string>());
    const Outcome outcome = encore(
        {"eval", "--load", tiny.path(folder), "--text", tiny.path("text"), "--json", "--backend", "serial"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
    losses.push_back(json::parse(outcome.output)["loss"]);
  }
  CHECK(losses[0] == losses[1]);
  // What saves into such a folder would replace what others wrote.
  for (const auto& [folder, more] :
       {std::pair{"three", "1MB"}, std::pair{"one", "1MB"}, std::pair{"three", "0"}})
    check_refused(encore({"train", "--load", tiny.path(folder), "--text", tiny.path("text"), "--backend",
                          "serial", "--save", tiny.path(folder), "--shard-size", more}),
                  3, {tiny.path(folder)});
}

TEST_CASE("a run that is killed while it saves shards leaves a checkpoint that goes on") {
  const TinyModel tiny;
  const std::string index = tiny.path("shards/model.safetensors.index.json");
  for (int round = 0; round < 3; ++round) {
    BackgroundRun run(tiny.train({"--steps", "100000", "--save", tiny.path("shards"), "--shard-size", "8KB",
                                  "--set", "train.checkpoint_interval=1", "--no-verdict"}));
    for (int tries = 0; tries < 6000 && !std::filesystem::exists(index); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(37 * (round + 1)));
    run.send(SIGKILL);
    run.wait();
    const Outcome outcome =
        encore({"eval", "--load", tiny.path("shards"), "--sequences", "4", "--backend", "serial"});
    CHECK_MESSAGE(outcome.code == 0, outcome.error);
  }
}
